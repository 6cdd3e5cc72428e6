"""The canonical bytes of documents, and what the strict reader refuses."""

import json
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_core.canonical import (
    MAX_INTEGER,
    JsonValue,
    NotCanonical,
    canonical_json,
    canonical_known,
    read_canonical,
    strict_json,
)
from tests.examples import examples

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
integers = st.integers(-MAX_INTEGER, MAX_INTEGER)
documents: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | integers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def reversed_members(value: JsonValue) -> JsonValue:
    match value:
        case Mapping():
            return {name: reversed_members(member) for name, member in reversed(list(value.items()))}
        case list():
            return [reversed_members(item) for item in value]
        case _:
            return value


@given(documents)
def test_round_trip(document: JsonValue) -> None:
    data = canonical_json(document)
    assert strict_json(data) == document
    assert canonical_json(strict_json(data)) == data


@given(documents)
def test_a_document_that_is_known_to_have_a_form_has_that_one(document: JsonValue) -> None:
    assert canonical_known(document) == canonical_json(document)


@given(documents)
def test_member_order_is_not_part_of_a_document(document: JsonValue) -> None:
    assert canonical_json(reversed_members(document)) == canonical_json(document)


@given(documents, documents)
def test_equal_bytes_are_equal_documents(one: JsonValue, other: JsonValue) -> None:
    # As JSON text, since Python holds 1 and True for equal.
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (canonical_json(one) == canonical_json(other)) == same


def test_members_are_ordered_by_utf_16() -> None:
    """The example of RFC 8785, section 3.2.3: an emoji sorts before a letter of the last block."""
    document = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7}
    assert json.loads(canonical_json(document), object_pairs_hook=lambda pairs: [value for _, value in pairs]) == [
        2,
        4,
        6,
        7,
        1,
        5,
        3,
    ]


def test_escapes() -> None:
    """RFC 8785, section 3.2.2.2: the short escapes, lower-case hexadecimal, all else as it is."""
    assert (
        canonical_json('\b\t\n\f\r\x1f"\\/\x7f\u2028\u20ac')
        == '"\\b\\t\\n\\f\\r\\u001f\\"\\\\/\x7f\u2028\u20ac"'.encode()
    )


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, 0.5]}, "$.a[1]"),
        ({"a": {"b": float("nan")}}, "$.a.b"),
        (b"bytes", "$"),
        ({1: "name"}, "$"),
        ([MAX_INTEGER + 1], "$[0]"),
        (-MAX_INTEGER - 1, "$"),
        ({"a": "\ud800"}, "$.a"),
        ({"\udfff": 1}, "$"),
        ({"a", "b"}, "$"),
    ],
)
def test_what_has_no_canonical_form(value: JsonValue, place: str) -> None:
    with pytest.raises(NotCanonical) as caught:
        canonical_json(value)
    assert str(caught.value).startswith(f"{place}: ")


@pytest.mark.thorough
def test_nesting_without_end_has_no_canonical_form() -> None:
    value: JsonValue = 1
    for _ in range(100_000):
        value = [value]
    with pytest.raises(NotCanonical):
        canonical_json(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"1.0",
        b'{"a": 1e3}',
        b"NaN",
        b"-Infinity",
        b'{"a": 1, "a": 1}',
        b'{"a": {"b": 1, "b": 2}}',
        b'"\\ud800"',
        b'{"\\udc00": 1}',
        b'["\\ud83d", "\\ude00"]',
        b'"\xed\xa0\x80"',
        b'"\xff"',
        b"\xef\xbb\xbf1",
        '{"a": 1}'.encode("utf-16"),
        '{"a": 1}'.encode("utf-32-le"),
        str(MAX_INTEGER + 1).encode(),
        str(-MAX_INTEGER - 1).encode(),
        b"9" * 10_000,
        b"[" * 100_000,
        b"1 2",
    ],
)
def test_what_is_no_strict_json(data: bytes) -> None:
    with pytest.raises(NotCanonical):
        strict_json(data)


@pytest.mark.parametrize("read", [strict_json, read_canonical])
@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b'{"a":\nsecret}', "not JSON, at line 2, column 1"),
        (b'"secret\xff"', "not JSON: byte 7 is not UTF-8"),
        (b"[" * 100_000, "not JSON: nested too deeply"),
    ],
)
def test_where_it_is_no_json_is_told_and_not_what_stands_there(
    read: Callable[[bytes], object], data: bytes, told: str
) -> None:
    with pytest.raises(NotCanonical) as caught:
        read(data)
    assert str(caught.value) == told


def test_an_escaped_pair_is_one_character() -> None:
    assert strict_json(b'"\\ud83d\\ude00"') == "\U0001f600"


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        value = strict_json(data)
    except NotCanonical:
        return
    canonical_json(value)


def read_or_none(data: bytes) -> object:
    """What :func:`read_canonical` makes of ``data``; itself where it is refused."""
    try:
        return json.dumps(read_canonical(data))
    except NotCanonical:
        return NotCanonical


def strict_or_none(data: bytes) -> object:
    try:
        value = strict_json(data)
        return json.dumps(value) if canonical_json(value) == data else NotCanonical
    except NotCanonical:
        return NotCanonical


@given(documents)
def test_canonical_bytes_are_read(document: JsonValue) -> None:
    assert read_canonical(canonical_json(document)) == document


@given(documents, st.booleans(), st.booleans(), st.sampled_from((None, (",", ":"), (", ", ":"))))
def test_of_all_ways_to_write_a_document_one_is_read(
    document: JsonValue, ascii_only: bool, ordered: bool, separators: tuple[str, str] | None
) -> None:
    data = json.dumps(document, ensure_ascii=ascii_only, sort_keys=ordered, separators=separators).encode()
    assert read_or_none(data) == strict_or_none(data)


@settings(max_examples=examples(30))
@given(documents, st.data())
def test_canonical_bytes_with_one_byte_changed(document: JsonValue, data: st.DataObject) -> None:
    written = canonical_json(document)
    at = data.draw(st.integers(0, len(written) - 1))
    for byte in (*b'0-.eE"{}[]:,\\u tfn ', 0, 0xFF):
        spoilt = written[:at] + bytes((byte,)) + written[at + 1 :]
        assert read_or_none(spoilt) == strict_or_none(spoilt)


@pytest.mark.parametrize(
    "data",
    [
        b"-0",
        b"01",
        b"1.0",
        b"1e3",
        b"[1,-0]",
        b'{"a":1,"a":1}',
        b'{"b":1,"a":1}',
        b'{"a":1 }',
        b'"\\u0041"',
        b'"\\ud800"',
        b'{"\\udc00":1}',
        b'"\\/"',
        b'"\\u001F"',
        b"NaN",
        b"[Infinity]",
        b'{"a":9007199254740992}',
        b'{"a":-9007199254740992}',
        b"9" * 10_000,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\xff",
        b"",
        '{"\U0001f600":1,"\ufb33":2}'.encode("utf-16"),
        '{"\ufb33":2,"\U0001f600":1}'.encode(),
    ],
)
def test_what_is_not_canonical_is_not_read(data: bytes) -> None:
    with pytest.raises(NotCanonical):
        read_canonical(data)
