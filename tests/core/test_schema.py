"""JSON Schemas of attrs values."""

import enum
from typing import Any

import attrs
import pytest

from lunanexa_core.canonical import MAX_INTEGER
from lunanexa_core.contract.schema import SchemaBook, rules
from lunanexa_core.ids import NodeId

INTEGER = {"type": "integer", "minimum": -MAX_INTEGER, "maximum": MAX_INTEGER}


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@attrs.frozen
class Leaf:
    """A ``leaf``
    of the tree."""

    colour: Colour
    size: int = attrs.field(default=1, metadata=rules(minimum=1))


@attrs.frozen(kw_only=True)
class Tree:
    name: NodeId
    leaf: Leaf | None
    leaves: tuple[Leaf, ...] = ()
    extra: dict[str, Any] = attrs.Factory(dict)
    below: "Tree | None" = None


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (str, {"type": "string"}),
        (NodeId, {"type": "string"}),
        (int, INTEGER),
        (bool, {"type": "boolean"}),
        (bytes, {"type": "string", "contentEncoding": "base64"}),
        (Any, {}),
        (Colour, {"enum": ["red", "blue"]}),
        (int | None, {"anyOf": [INTEGER, {"type": "null"}]}),
        (tuple[str, ...], {"type": "array", "items": {"type": "string"}}),
        (frozenset[bool], {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True}),
        (dict[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
    ],
)
def test_a_type_has_its_schema(kind: Any, schema: Any) -> None:
    assert SchemaBook().of(kind) == schema


def test_a_class_stands_once_under_its_name() -> None:
    book = SchemaBook(closed=frozenset({Leaf}))
    assert book.of(Tree) == {"$ref": "#/components/schemas/Tree"}
    assert book.schemas["Leaf"] == {
        "type": "object",
        "description": "A `leaf` of the tree.",
        "properties": {"colour": {"enum": ["red", "blue"]}, "size": {**INTEGER, "minimum": 1}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    tree: Any = book.schemas["Tree"]
    assert tree["required"] == ["name", "leaf"]
    assert "additionalProperties" not in tree
    assert tree["properties"]["below"] == {"anyOf": [{"$ref": "#/components/schemas/Tree"}, {"type": "null"}]}
    assert set(book.schemas) == {"Tree", "Leaf"}


@pytest.mark.parametrize("kind", [float, list[str], tuple[int, str], dict[int, str], set[str], object])
def test_a_type_without_json_form_is_a_mistake(kind: Any) -> None:
    with pytest.raises(TypeError, match="no JSON Schema"):
        SchemaBook().of(kind)
