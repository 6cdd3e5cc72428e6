"""JSON Schema of attrs values, so that what is published about a document can't differ from its type.

Source of the dialect: JSON Schema 2020-12, as OpenAPI 3.1 uses it (https://spec.openapis.org/oas/v3.1.1).
"""

import enum
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Final, NewType, TypeAlias, Union, get_args, get_origin, get_type_hints

import attrs

from lunanexa_core.canonical import MAX_INTEGER, JsonValue

Schema: TypeAlias = dict[str, JsonValue]
RULES: Final = "schema"
"""Key of the field metadata whose value (``minimum``, ``maxLength`` …) is added to the field's schema."""

_PLAIN: Final[dict[Any, Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer", "minimum": -MAX_INTEGER, "maximum": MAX_INTEGER},
    bool: {"type": "boolean"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    NoneType: {"type": "null"},
    Any: {},
}


def rules(**keywords: JsonValue) -> dict[str, Mapping[str, JsonValue]]:
    """Metadata of a field: ``attrs.field(metadata=rules(minimum=1))``."""
    return {RULES: keywords}


class SchemaBook:
    """Collects schemas of types; each attrs class stands once, under its name, in ``schemas``."""

    def __init__(self, *, closed: frozenset[type] = frozenset(), prefix: str = "#/components/schemas/") -> None:
        """``closed``: classes of which unknown members are refused."""
        self._closed = closed
        self._prefix = prefix
        self.schemas: dict[str, JsonValue] = {}

    def of(self, kind: Any) -> Schema:
        """The schema of ``kind``: a reference for an attrs class. Raises :class:`TypeError` for a type that has
        no JSON form here."""
        if isinstance(kind, NewType):
            return self.of(kind.__supertype__)
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"enum": [member.value for member in kind]}
        if isinstance(kind, type) and attrs.has(kind):
            return self._reference(kind)
        return self._composed(kind)

    def _composed(self, kind: Any) -> Schema:
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Union, UnionType):
            return {"anyOf": [self.of(argument) for argument in arguments]}
        if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
            return {"type": "array", "items": self.of(arguments[0])}
        if origin is frozenset:
            return {"type": "array", "items": self.of(arguments[0]), "uniqueItems": True}
        if origin is dict and arguments[0] is str:
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        raise TypeError(f"{kind!r} has no JSON Schema")

    def _reference(self, kind: type[attrs.AttrsInstance]) -> Schema:
        name = kind.__name__
        if name not in self.schemas:
            self.schemas[name] = {}  # a class may hold itself
            self.schemas[name] = self._object(kind)
        return {"$ref": self._prefix + name}

    def _object(self, kind: type[attrs.AttrsInstance]) -> Schema:
        """A member with a default may be missing."""
        hints = get_type_hints(kind)
        fields = attrs.fields(kind)
        schema: Schema = {
            "type": "object",
            "properties": {field.name: self.of(hints[field.name]) | field.metadata.get(RULES, {}) for field in fields},
            "required": [field.name for field in fields if field.default is attrs.NOTHING],
        }
        if kind in self._closed:
            schema["additionalProperties"] = False
        return {"description": described(kind), **schema}


def described(kind: type) -> str:
    """What the class says of itself, as one line of Markdown."""
    return " ".join((kind.__doc__ or "").split()).replace("``", "`")
