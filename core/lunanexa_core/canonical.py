"""The canonical bytes of our own documents (RFC 8785, without numbers that are not integers).

What is signed or hashed is written by this function, so that equal documents have equal bytes on
every machine. Floats are refused: 1.0 and 1 would be equal documents with different meanings.
Client bodies are never brought into this form; they are hashed as they came.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, assert_never

JsonValue: TypeAlias = bool | int | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"] | None

MAX_INTEGER = 2**53 - 1


class NotCanonical(ValueError):
    """The value has no canonical form, or the bytes are no strict JSON. The message names the place."""


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False)
_SORTING: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False, sort_keys=True
)


def canonical_json(value: JsonValue) -> bytes:
    """Canonical UTF-8 bytes of ``value``. Raises :class:`NotCanonical` with the path of what is wrong."""
    try:
        return _ENCODER.encode(_ordered(value)).encode()
    except _WrongError as wrong:
        raise NotCanonical(f"${''.join(reversed(wrong.steps))}: {wrong.why}") from None
    except RecursionError:
        raise NotCanonical("$: nested too deeply") from None


def canonical_known(value: JsonValue) -> bytes:
    """:func:`canonical_json`, in half of its time, of a value that is known to hold nothing that has no such form: of
    ours, not of a caller."""
    text = _SORTING.encode(value)
    # Only names beyond ASCII have another order than that of their code points.
    return text.encode() if text.isascii() else canonical_json(value)


class _WrongError(Exception):
    """What is wrong, and the steps to it, innermost first: paths are only put together for what is wrong."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.steps: list[str] = []


def _ordered(value: JsonValue) -> Any:
    match value:
        case str():
            _refuse_surrogates(value)
            return value
        case None | bool():
            return value
        case int():
            if abs(value) > MAX_INTEGER:
                raise _WrongError("integer beyond 2^53-1")
            return value
        case dict() | Mapping():
            return _ordered_members(value)
        case list() | tuple():
            return _ordered_items(value)
        case _:
            raise _WrongError(f"{type(value).__name__} has no canonical form")


def _ordered_members(value: Mapping[str, JsonValue]) -> dict[str, Any]:
    ascii_only = True
    for name in value:
        if not isinstance(name, str):
            raise _WrongError("member names must be strings")
        if not name.isascii():
            ascii_only = False
            _refuse_surrogates(name)
    # RFC 8785 orders member names by their UTF-16 code units.
    names = sorted(value) if ascii_only else sorted(value, key=lambda name: name.encode("utf-16-be"))
    members: dict[str, Any] = {}
    for name in names:
        try:
            members[name] = _ordered(value[name])
        except _WrongError as wrong:
            wrong.steps.append(f".{name}")
            raise
    return members


def _ordered_items(value: Sequence[JsonValue]) -> list[Any]:
    items: list[Any] = []
    for item in value:
        try:
            items.append(_ordered(item))
        except _WrongError as wrong:
            wrong.steps.append(f"[{len(items)}]")
            raise
    return items


def _refuse_surrogates(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _WrongError("lone surrogate") from None


def read_canonical(data: bytes) -> Any:
    """:func:`strict_json` for bytes that must be in canonical form. Raises :class:`NotCanonical` also when they are
    not."""
    if data.isascii():
        # What is written back as it was read had no repeated member, no escaped surrogate and nothing out of its
        # order, which for ASCII is that of code points.
        text = data.decode()
        try:
            value = _PLAIN.decode(text)
            if _SORTING.encode(value) == text:
                return value
        except (json.JSONDecodeError, RecursionError) as error:
            raise _not_json(error) from None
    value = strict_json(data)
    if canonical_json(value) != data:
        raise NotCanonical("not in canonical form")
    return value


def strict_json(data: bytes) -> Any:
    """The value of a document of ours: UTF-8, no repeated member, no float, no NaN, no integer beyond 2^53-1,
    no lone surrogate. What it returns has a canonical form. Raises :class:`NotCanonical`."""
    try:
        # Decoded here: json.loads would guess UTF-16 and let surrogates through.
        text = data.decode("utf-8", "strict")
        value = _STRICT.decode(text)
        # A surrogate can only come from an escape, and escapes are rare: most documents are not walked.
        if "\\u" in text:
            _ordered(value)
    except _WrongError as wrong:
        raise NotCanonical(wrong.why) from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _not_json(error) from None
    return value


def _not_json(error: UnicodeDecodeError | json.JSONDecodeError | RecursionError) -> NotCanonical:
    """Without a word of what stands there."""
    match error:
        case json.JSONDecodeError(lineno=line, colno=column):
            return NotCanonical(f"not JSON, at line {line}, column {column}")
        case UnicodeDecodeError(start=byte):
            return NotCanonical(f"not JSON: byte {byte} is not UTF-8")
        case RecursionError():
            return NotCanonical("not JSON: nested too deeply")
        case _:
            assert_never(error)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise NotCanonical("a member is repeated")
    return members


def _bounded(text: str) -> int:
    # 2^53-1 has 16 digits; int() is quadratic and refuses thousands of digits with another exception.
    if len(text) < 16:
        return int(text)
    if len(text) > 17 or abs(value := int(text)) > MAX_INTEGER:
        raise NotCanonical("integer beyond 2^53-1")
    return value


def _no_float(text: str) -> Any:
    raise NotCanonical(f"number {text[:32]} is no integer")


_STRICT: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_bounded, parse_float=_no_float, parse_constant=_no_float
)
_PLAIN: Final = json.JSONDecoder(parse_int=_bounded, parse_float=_no_float, parse_constant=_no_float)
