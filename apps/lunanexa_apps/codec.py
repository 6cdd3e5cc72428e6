"""Values of ours to canonical bytes and back: journal bodies, signed documents, node-plane and operator bodies.

The written form is :func:`lunanexa_core.canonical.canonical_json` over what cattrs makes of an attrs value:
enums by value, bytes as base 64, sets sorted. Reading checks types and never converts: cattrs alone would
turn ``"3"`` into 3 and iterate over a string where a list belongs. It reads with a converter that keeps no
paths (1.3 against 2.1 µs for twenty fields) and, only when that one fails, again with one that does, so
that every error still names its field. Values themselves never stand in an error.
"""

import base64
import binascii
import enum
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeVar, get_args, get_origin

import attrs
import cattrs
from cattrs.cols import homogenous_tuple_structure_factory, is_frozenset, iterable_unstructure_factory
from cattrs.gen import make_dict_structure_fn

from lunanexa_core.canonical import JsonValue, NotCanonical, canonical_json, strict_json

T = TypeVar("T")


class CodecError(ValueError):
    """A document is not what it should be. ``path`` (``$.engine.slots``) says where; the message too."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class _Mismatch(ValueError):
    """One value of the wrong kind; the place is added by who knows it."""


def encode(value: object) -> bytes:
    """Canonical JSON bytes of an attrs value. Raises ``NotCanonical`` for what has no canonical form (floats)."""
    return canonical_json(unstructure(value))


def unstructure(value: object) -> JsonValue:
    """The JSON value of an attrs value, every field in it, ``None`` as null."""
    document: JsonValue = _FAST.unstructure(value)
    return document


def decode(target: type[T], data: bytes, *, closed: bool = False) -> T:
    """The value of type ``target`` that ``data`` holds. Raises :class:`CodecError`, naming the field.

    Unknown members are ignored, as southbound documents and events demand, unless ``closed``."""
    try:
        document = strict_json(data)
    except NotCanonical as error:
        raise CodecError("$", str(error)) from None
    return structure(target, document, closed=closed)


def structure(target: type[T], document: JsonValue, *, closed: bool = False) -> T:
    """:func:`decode` for a JSON value that was parsed already."""
    try:
        return (_FAST_CLOSED if closed else _FAST).structure(document, target)
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        cattrs.BaseValidationError,
        cattrs.ForbiddenExtraKeysError,
    ):
        return _explain(target, document, closed=closed)


def _explain(target: type[T], document: JsonValue, *, closed: bool) -> T:
    try:
        return (_EXACT_CLOSED if closed else _EXACT).structure(document, target)
    except (ValueError, TypeError, KeyError, AttributeError, cattrs.BaseValidationError) as error:
        raise CodecError(*_first_fault(error, "$")) from None


def _first_fault(error: BaseException, path: str) -> tuple[str, str]:
    """The place and the nature of the first fault in the tree of errors that cattrs raises."""
    match error:
        case cattrs.ClassValidationError():
            noted, others = error.group_exceptions()
            # A member that is misspelt is also one that is missing: the misspelt name says more.
            unknown = [other for other in others if isinstance(other, cattrs.ForbiddenExtraKeysError)]
            if noted and not unknown:
                inner, note = noted[0]
                return _first_fault(inner, f"{path}.{note.name}")
            return _first_fault([*unknown, *others][0], path)
        case cattrs.IterableValidationError():
            items, others = error.group_exceptions()
            if items:
                inner, place = items[0]
                return _first_fault(inner, f"{path}[{place.index}]")
            return _first_fault(others[0], path)
        case cattrs.ForbiddenExtraKeysError():
            return f"{path}.{min(map(str, error.extra_fields))}", "is no known member"
        case KeyError():
            return path, "is missing"
        case _Mismatch():
            return path, str(error)
        case _:
            # The class's own validator; its message may hold the value, so only its kind is told.
            return path, f"not acceptable ({type(error).__name__})"


_NAMES: Final[dict[type, str]] = {str: "string", int: "integer", bool: "boolean", list: "list", dict: "object"}


def _kind(value: object) -> str:
    return "null" if value is None else _NAMES.get(type(value), type(value).__name__)


def _expect(kind: type) -> Callable[[Any, Any], Any]:
    def check(value: Any, _: Any) -> Any:
        # ``type is``: a boolean is an int to isinstance, and never one in a document.
        if type(value) is not kind:
            raise _Mismatch(f"expected {_NAMES[kind]}, not {_kind(value)}")
        return value

    return check


def _bytes(value: Any, _: Any) -> bytes:
    if type(value) is not str:
        raise _Mismatch(f"expected base 64 string, not {_kind(value)}")
    try:
        return base64.b64decode(value.encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise _Mismatch("not base 64") from None


def _enum_factory(kind: Any) -> Callable[[Any, Any], Any]:
    members = {member.value: member for member in kind}
    allowed = ", ".join(str(value) for value in members)

    def check(value: Any, _: Any) -> Any:
        # Hashability is checked by type first: a list would raise TypeError here.
        member = members.get(value) if type(value) in (str, int) else None
        if member is None:
            raise _Mismatch(f"not one of {allowed}")
        return member

    return check


def _guarded(kind: type, inner: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """``inner`` behind a check that the value is a JSON container of that kind."""

    def check(value: Any, target: Any) -> Any:
        if type(value) is not kind and not (kind is list and type(value) is tuple):
            raise _Mismatch(f"expected {_NAMES[kind]}, not {_kind(value)}")
        return inner(value, target)

    return check


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def _is_mapping(kind: Any) -> bool:
    return get_origin(kind) is dict


def _is_series(kind: Any) -> bool:
    arguments = get_args(kind)
    return get_origin(kind) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis


def _set_factory(kind: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    series = homogenous_tuple_structure_factory(tuple[get_args(kind)[0], ...], converter)  # type: ignore[arg-type,misc]  # a type made at run time
    return _guarded(list, lambda value, target: frozenset(series(value, target)))


def _mapping_factory(kind: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    return _guarded(dict, cattrs.cols.mapping_structure_factory(kind, converter))


def _make_converter(*, detailed: bool, closed: bool) -> cattrs.Converter:
    converter = cattrs.Converter(
        detailed_validation=detailed,
        forbid_extra_keys=closed,
        unstruct_collection_overrides={AbstractSet: lambda items: sorted(items, key=canonical_json)},
    )
    for kind in (str, int, bool):
        converter.register_structure_hook(kind, _expect(kind))
    converter.register_structure_hook(bytes, _bytes)
    converter.register_unstructure_hook(bytes, lambda value: base64.b64encode(value).decode())
    converter.register_structure_hook_factory(_is_enum, _enum_factory)
    converter.register_structure_hook_factory(
        attrs.has,
        lambda kind: _guarded(dict, make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=closed)),
    )
    converter.register_structure_hook_factory(_is_mapping, lambda kind: _mapping_factory(kind, converter))
    converter.register_structure_hook_factory(
        _is_series, lambda kind: _guarded(list, homogenous_tuple_structure_factory(kind, converter))
    )
    converter.register_structure_hook_factory(is_frozenset, lambda kind: _set_factory(kind, converter))
    converter.register_unstructure_hook_factory(
        _is_series, lambda kind: iterable_unstructure_factory(kind, converter, unstructure_to=list)
    )
    return converter


_FAST = _make_converter(detailed=False, closed=False)
_EXACT = _make_converter(detailed=True, closed=False)
_FAST_CLOSED = _make_converter(detailed=False, closed=True)
_EXACT_CLOSED = _make_converter(detailed=True, closed=True)
