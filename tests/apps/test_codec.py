"""The codec: what goes out comes back, and what is wrong is named."""

import enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_apps import codec
from lunanexa_apps.codec import CodecError
from lunanexa_core.canonical import NotCanonical, canonical_json, strict_json
from lunanexa_core.deployment import Deployment, DeploymentSpec, EngineSpec
from lunanexa_core.ids import Alias, DeploymentId, KeyId, TenantId
from lunanexa_core.journal import Row
from lunanexa_core.keys import ApiKey, Role
from lunanexa_core.southbound.documents import DesiredState, SignedDocument
from lunanexa_core.southbound.enrolment import Enrolled, Enrolment
from lunanexa_core.southbound.heartbeat import Heartbeat, HeartbeatAnswer
from lunanexa_core.workload import Receipt, Settlement, WorkloadRequest

VALUES = (
    ApiKey,
    Deployment,
    DesiredState,
    Enrolled,
    Enrolment,
    Heartbeat,
    HeartbeatAnswer,
    Receipt,
    Row,
    Settlement,
    SignedDocument,
    WorkloadRequest,
)

text = st.text(st.characters(codec="utf-8"), max_size=12)
number = st.integers(-(2**53) + 1, 2**53 - 1)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value that a document may hold: integers and text have a canonical form."""
    arguments = get_args(kind)
    simple: dict[Any, st.SearchStrategy[Any]] = {str: text, int: number, bool: st.booleans(), bytes: st.binary()}
    if hasattr(kind, "__supertype__"):
        return values_of(kind.__supertype__)
    if kind in simple:
        return simple[kind]
    if attrs.has(kind):
        fields = attrs.fields(attrs.resolve_types(kind))
        return st.builds(kind, **{field.name: values_of(field.type) for field in fields})
    if get_origin(kind) is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if get_origin(kind) is frozenset:
        return st.frozensets(values_of(arguments[0]), max_size=3)
    if get_origin(kind) is dict:
        return st.dictionaries(text, values_of(arguments[1]), max_size=3)
    if get_origin(kind) in (UnionType, Union):
        return st.one_of([values_of(argument) for argument in arguments])
    return st.none() if kind is NoneType else st.sampled_from(list(kind))


@given(st.one_of([values_of(kind) for kind in VALUES]))
def test_round_trip_over_core_values(value: Any) -> None:
    data = codec.encode(value)
    assert codec.decode(type(value), data) == value
    assert codec.decode(type(value), data, closed=True) == value
    assert canonical_json(strict_json(data)) == data


@given(values_of(ApiKey))
def test_equal_values_have_equal_bytes(key: ApiKey) -> None:
    again = attrs.evolve(key, aliases=frozenset(sorted(key.aliases, reverse=True)))
    assert codec.encode(again) == codec.encode(key)


SPEC = DeploymentSpec(
    deployment=DeploymentId("demo"),
    alias=Alias("demo"),
    engine=EngineSpec(driver="reference", served_name="demo", binary="/bin/engine", arguments=("--slots", "4")),
)


def changed(**members: object) -> Any:
    document: Any = codec.unstructure(SPEC)
    document["engine"].update(members)
    return document


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"slots": "4"}, "$.engine.slots: expected integer, not string"),
        ({"slots": True}, "$.engine.slots: expected integer, not boolean"),
        ({"slots": None}, "$.engine.slots: expected integer, not null"),
        ({"driver": 7}, "$.engine.driver: expected string, not integer"),
        ({"binary": []}, "$.engine.binary: expected string, not list"),
        ({"arguments": "--slots"}, "$.engine.arguments: expected list, not string"),
        ({"arguments": ["a", 3]}, "$.engine.arguments[1]: expected string, not integer"),
    ],
)
def test_errors_name_the_field(members: dict[str, object], message: str) -> None:
    with pytest.raises(CodecError) as caught:
        codec.structure(DeploymentSpec, changed(**members))
    assert str(caught.value) == message


def test_a_missing_field_is_named() -> None:
    document = changed()
    del document["engine"]["driver"]
    with pytest.raises(CodecError, match=r"^\$\.engine\.driver: is missing$"):
        codec.structure(DeploymentSpec, document)


def test_of_a_misspelt_field_its_own_name_is_told() -> None:
    document = changed()
    document["engine"]["drivr"] = document["engine"].pop("driver")
    with pytest.raises(CodecError, match=r"^\$\.engine\.drivr: is no known member$"):
        codec.structure(DeploymentSpec, document, closed=True)


def test_a_scalar_is_no_object() -> None:
    with pytest.raises(CodecError, match=r"^\$\.engine: expected object, not string$"):
        codec.structure(DeploymentSpec, {"deployment": "d", "alias": "a", "engine": "reference"})
    with pytest.raises(CodecError, match=r"^\$: expected object, not list$"):
        codec.decode(DeploymentSpec, b"[]")


def test_unknown_members_are_ignored_or_refused() -> None:
    document = changed(colour="red")
    assert codec.structure(DeploymentSpec, document) == SPEC
    with pytest.raises(CodecError, match=r"^\$\.engine\.colour: is no known member$"):
        codec.structure(DeploymentSpec, document, closed=True)


def test_an_unknown_enum_value_shows_what_is_allowed_and_not_itself() -> None:
    document: Any = codec.unstructure(
        ApiKey(key=KeyId("k"), tenant=TenantId("t"), digest="", roles=frozenset({Role.OPERATOR}))
    )
    document["roles"] = ["operator", "lnx_secret"]
    with pytest.raises(CodecError) as caught:
        codec.structure(ApiKey, document)
    assert str(caught.value) == "$.roles[1]: not one of operator, auditor, monitor, inference"


@pytest.mark.parametrize("data", [b"", b"{", b'{"a":1,"a":1}', b'{"a":1.5}', b"\xff", b"NaN"])
def test_what_is_no_document_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError, match=r"^\$: "):
        codec.decode(Enrolment, data)


def test_bytes_must_be_base_64() -> None:
    document: Any = codec.unstructure(SignedDocument(payload=b"x", key_id="k", signature=b"s"))
    assert document["payload"] == "eA=="
    with pytest.raises(CodecError, match=r"^\$\.payload: not base 64$"):
        codec.structure(SignedDocument, document | {"payload": "e A=="})


class Number(enum.Enum):
    ONE = 1


@attrs.frozen
class Odd:
    number: Number
    pairs: dict[str, tuple[int, ...]]


def test_integer_enums_and_nested_collections() -> None:
    value = Odd(Number.ONE, {"b": (2,), "a": ()})
    assert codec.encode(value) == b'{"number":1,"pairs":{"a":[],"b":[2]}}'
    assert codec.decode(Odd, codec.encode(value)) == value
    with pytest.raises(CodecError, match=r"^\$\.pairs\[b\]\[0\]: expected integer, not string$"):
        codec.decode(Odd, b'{"number":1,"pairs":{"b":["x"]}}')


@attrs.frozen
class Fraction:
    part: float


def test_floats_have_no_form() -> None:
    with pytest.raises(NotCanonical):
        codec.encode(Fraction(0.5))
