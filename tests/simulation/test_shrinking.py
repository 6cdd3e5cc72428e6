"""Delta debugging: what is left fails, and nothing of it can be left out."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_simulation.shrinking import smallest
from tests.examples import examples


@given(count=st.integers(1, 40), data=st.data())
@settings(max_examples=examples(60))
def test_exactly_what_is_needed_is_left(count: int, data: st.DataObject) -> None:
    needed = data.draw(st.sets(st.integers(0, count - 1)))
    asked = 0

    def fails(tried: Sequence[int]) -> bool:
        nonlocal asked
        asked += 1
        assert list(tried) == sorted(set(tried)), "in the order in which they were given"
        return needed <= set(tried)

    assert list(smallest(range(count), fails)) == sorted(needed)
    assert asked <= count**2 + 3 * count


@given(count=st.integers(2, 20))
@settings(max_examples=examples(20))
def test_of_two_ways_to_fail_one_is_left(count: int) -> None:
    found = smallest(range(count), lambda tried: 0 in tried or count - 1 in tried)
    assert list(found) in ([0], [count - 1])
