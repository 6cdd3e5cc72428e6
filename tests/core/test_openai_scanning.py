"""Passing over JSON: what is accepted and refused is what the standard library says, wherever a step ends."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_core.openai.passing import DIGITS_MAX, NESTING_MAX
from lunanexa_core.openai.scanning import (
    LARGE,
    MEMBERS_MAX,
    NAME_BYTES_MAX,
    VALUE_BYTES_MAX,
    MalformedJson,
    Member,
    ends_at,
    items,
    members,
    only_integers,
    utf8_fault,
)
from tests.examples import examples

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    # Near the length of a step, so that steps end everywhere.
    | st.builds(lambda text, times: text * times, st.sampled_from(["x", "é", '"', "\n", "[", "語"]), st.integers(0, 9))
    | st.builds(lambda text, size: (text * size)[:size], st.text(min_size=1), st.integers(16_000, 17_000))
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=12
)
PIECES = st.sampled_from(
    [piece.encode() for piece in ',:[]{}"\\0123456789.eE+-tfnu \n\t\x01'] + [b"", b"NaN", b"\\u00", b"[]"]
)

MANY = ",".join(["12345"] * 10_000)


def walk(data: bytes) -> list[Member]:
    """All members of the whole text; raises ``MalformedJson``."""
    found: list[Member] = []
    for member in members(data):
        if isinstance(member, int):
            ends_at(data, member + 1)
        else:
            found.append(member)
    return found


def refusal(data: bytes) -> MalformedJson:
    with pytest.raises(MalformedJson) as caught:
        walk(data)
    return caught.value


def reference(data: bytes) -> dict[str, Any] | None:
    """What the standard library reads, without the constants that are none in RFC 8259."""

    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    try:
        value = json.loads(data.decode(), parse_constant=refuse)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def agrees(data: bytes) -> None:
    expected = reference(data)
    if expected is None:
        position = refusal(data).position
        assert 0 <= position <= len(data)
        return
    found = walk(data)
    assert {member.name for member in found} == expected.keys()
    for member in found:
        text = data[member.start : member.end]
        assert member.value in (json.loads(text), LARGE)
        assert (member.value is LARGE) == (len(text) > VALUE_BYTES_MAX)
    assert {member.name: json.loads(data[member.start : member.end]) for member in found} == expected


@settings(max_examples=examples(100))
@given(
    value=st.dictionaries(st.text(), JSON, max_size=4),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), PIECES), max_size=2),
)
def test_a_document_and_its_damaged_copies_are_read_as_by_the_standard_library(
    value: dict[str, Any], indent: int | None, ascii_only: bool, edits: list[tuple[float, int, bytes]]
) -> None:
    data = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode(errors="replace")
    for where, cut, piece in edits:
        at = round(where * len(data))
        data = data[:at] + piece + data[at + cut :]
    assert (utf8_fault(data) is None) == (data.decode(errors="replace").encode() == data)
    if utf8_fault(data) is None:
        agrees(data)


@settings(max_examples=examples(200))
@given(st.lists(PIECES, max_size=25).map(b"".join))
def test_noise_is_refused_and_what_is_none_is_read(noise: bytes) -> None:
    agrees(b'{"a":' + noise + b"}")
    agrees(b'{"a":[1,' + noise + b"]}")
    agrees(b'{"a":{"b":' + noise + b"}}")


@settings(max_examples=examples(40))
@given(pad=st.integers(16_340, 16_400), tail=st.sampled_from(["\\u00e9", "\\\\", '\\"', "é", "語", "12,34", "true"]))
def test_no_value_is_taken_apart_where_a_step_ends(pad: int, tail: str) -> None:
    filled = "x" * pad
    agrees(f'{{"a":"{filled}{tail}","b":1}}'.encode())
    agrees(f'{{"a":[{"7," * (pad // 2)}{pad},true,{pad}]}}'.encode())
    agrees(f'{{"a":[["{filled}{tail}"],{{"{filled}{tail}":"{tail}"}}]}}'.encode())
    agrees(f'{{"a":{" " * pad}[{" " * pad}]}}'.encode())
    assert reference(f'{{"a":"{filled}\\u00e"}}'.encode()) is None
    assert refusal(f'{{"a":"{filled}\\u00e"}}'.encode()).position == 6 + pad


@settings(max_examples=examples(100))
@given(st.binary(max_size=12), st.integers(16_378, 16_386))
def test_broken_utf_8_is_found_where_it_is(noise: bytes, pad: int) -> None:
    data = b"x" * pad + "é".encode() + noise
    expected = None
    try:
        data.decode()
    except UnicodeDecodeError as error:
        expected = error.start
    assert utf8_fault(data) == expected


def nested(levels: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return b'{"a":' + opening * levels + b"1" + closing * levels + b"}"


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"b":', b"}"), (b"[0,", b"]"), (b"[ ", b" ]")])
def test_nesting_is_bounded_alike_for_all(opening: bytes, closing: bytes) -> None:
    agrees(nested(NESTING_MAX, opening, closing))
    assert refusal(nested(NESTING_MAX + 1, opening, closing)).position == 5


def test_the_other_bounds() -> None:
    def of(name: str, count: int) -> bytes:
        return b"{" + b",".join(b'"%b%d":1' % (name.encode(), number) for number in range(count)) + b"}"

    assert len(walk(of("m", MEMBERS_MAX))) == MEMBERS_MAX
    assert str(MEMBERS_MAX) in str(refusal(of("m", MEMBERS_MAX + 1)))
    agrees(b'{"a":{' + of("m", MEMBERS_MAX * 2)[1:] + b"}")
    assert walk(b'{"%b":1}' % (b"x" * (NAME_BYTES_MAX - 2)))
    assert refusal(b'{"%b":1}' % (b"x" * (NAME_BYTES_MAX - 1))).position == 1
    for number in (b"9" * DIGITS_MAX, b"0." + b"9" * DIGITS_MAX, b"1e" + b"0" * DIGITS_MAX):
        assert walk(b'{"a":[%b]}' % number)
        assert refusal(b'{"a":[%b0]}' % number).position == 6


@given(st.lists(JSON, max_size=5), st.sampled_from([None, 1]))
def test_items_are_told_one_by_one(value: list[Any], indent: int | None) -> None:
    data = json.dumps({"a": value}, indent=indent).encode()
    (member,) = walk(data)
    assert [json.loads(data[start:end]) for start, end in items(data, member.start)] == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", True),
        ("[ ]", True),
        ("[1]", True),
        ("[ 1 , -2 ]", True),
        (f"[{MANY}]", True),
        (f"[{MANY},1.5]", False),
        ("[1,[2]]", False),
        ('["1"]', False),
    ],
)
def test_lists_of_integers_are_told(text: str, expected: bool) -> None:
    (member,) = walk(b'{"a":%b}' % text.encode())
    assert only_integers(member.data, member.start, member.end) is expected
