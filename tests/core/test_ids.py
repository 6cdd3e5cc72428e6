"""The written form of identifiers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.ids import CROCKFORD, format_id, is_identifier

moments = st.integers(0, 2**48 - 1)
bits = st.integers(0, 2**80 - 1)


def value_of(identifier: str) -> int:
    value = 0
    for character in identifier.partition("_")[2]:
        value = value * 32 + CROCKFORD.index(character)
    return value


@given(moments, bits)
def test_nothing_is_lost(wall_ms: int, random_bits: int) -> None:
    identifier = format_id("wl", wall_ms, random_bits)
    assert is_identifier(identifier)
    assert len(identifier) == len("wl_") + 26
    assert value_of(identifier) == wall_ms << 80 | random_bits


@given(moments, bits, moments, bits)
def test_identifiers_sort_by_age(one_ms: int, one_bits: int, other_ms: int, other_bits: int) -> None:
    one, other = format_id("wl", one_ms, one_bits), format_id("wl", other_ms, other_bits)
    assert (one < other) == ((one_ms, one_bits) < (other_ms, other_bits))


@pytest.mark.parametrize(("wall_ms", "random_bits"), [(-1, 0), (2**48, 0), (0, -1), (0, 2**80)])
def test_what_does_not_fit_is_a_bug(wall_ms: int, random_bits: int) -> None:
    with pytest.raises(AssertionError):
        format_id("wl", wall_ms, random_bits)


@pytest.mark.parametrize("text", ["a", "A-b_c.d:9", "x" * 256])
def test_identifiers(text: str) -> None:
    assert is_identifier(text)


@pytest.mark.parametrize("text", ["", "x" * 257, "a b", "a/b", "a\n", "\u00e9", "\u0661", "a\x00", "a%"])
def test_no_identifiers(text: str) -> None:
    assert not is_identifier(text)
