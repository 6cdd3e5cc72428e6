"""The circle of controllers: nobody's word keeps an agent from the one that serves."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_apps.node.circle import Circle
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.southbound.controllers import CONTROLLERS_MAX
from lunanexa_ports.errors import PortUnavailable
from tests.examples import examples

HOSTS = tuple(EngineAddress(f"controller-{number}", 8401) for number in range(6))
TOLD, LISTED, STRANGERS = HOSTS[:2], HOSTS[1:4], HOSTS[4:]


@attrs.frozen
class Word:
    """What one controller says. ``named``: who leads."""

    serves: bool = False
    named: EngineAddress | None = None


class Service:
    """Controllers; one that says nothing is away."""

    def __init__(self, words: Mapping[EngineAddress, Word]) -> None:
        self.words = words
        self.asked: list[EngineAddress] = []

    async def question(self, at: EngineAddress) -> Word:
        await trio.lowlevel.checkpoint()
        self.asked.append(at)
        if at not in self.words:
            raise PortUnavailable(f"{at.host} is away")
        return self.words[at]

    async def ask(self, circle: Circle) -> Word | None:
        self.asked.clear()
        try:
            return await circle.ask(self.question, lambda word: not word.serves, lambda word: word.named)
        except PortUnavailable:
            return None


def circle_of(listed: Sequence[EngineAddress] = LISTED) -> Circle:
    circle = Circle(TOLD)
    circle.learn(listed)
    return circle


_WORDS = st.builds(Word, serves=st.just(False), named=st.none() | st.sampled_from(HOSTS))


@settings(max_examples=examples(60))
@given(
    st.dictionaries(st.sampled_from(HOSTS), _WORDS),
    st.sampled_from((*TOLD, *LISTED)),
    st.integers(min_value=0, max_value=4),
)
def test_one_turn_finds_who_serves_whatever_the_others_say(
    words: dict[EngineAddress, Word], leader: EngineAddress, turns: int
) -> None:
    async def run() -> None:
        circle, nobody = circle_of(), Service(words)
        for _ in range(turns):
            answer = await nobody.ask(circle)
            assert answer is None or not answer.serves
            assert len(set(nobody.asked)) == len(nobody.asked)
            assert {*TOLD, *LISTED} <= set(nobody.asked) <= {*TOLD, *LISTED, *STRANGERS}
        service = Service({**words, leader: Word(serves=True)})
        answer = await service.ask(circle)
        assert answer is not None
        assert answer.serves
        again = await service.ask(circle)
        assert again == answer
        assert service.asked == [leader]

    trio.run(run)


async def test_who_is_named_is_asked_next() -> None:
    circle = circle_of()
    service = Service({LISTED[0]: Word(named=STRANGERS[0]), STRANGERS[0]: Word(serves=True)})
    answer = await service.ask(circle)
    assert answer == Word(serves=True)
    assert service.asked == [LISTED[0], STRANGERS[0]]
    assert circle.known == (*TOLD, *LISTED[1:], STRANGERS[0])


async def test_a_chain_of_strangers_is_not_followed() -> None:
    """Beside the last one that was named, one more a turn."""
    chain = [EngineAddress(f"stranger-{number}", 1) for number in range(40)]
    words = {one: Word(named=following) for one, following in pairwise(chain)}
    service = Service({LISTED[0]: Word(named=chain[0]), **words})
    circle = circle_of()
    for _ in range(5):
        await service.ask(circle)
        assert {*TOLD, *LISTED} <= set(service.asked)
        assert len(service.asked) <= len({*TOLD, *LISTED}) + 2
        assert len(circle.known) == len({*TOLD, *LISTED}) + 1


async def test_the_document_s_leader_is_begun_with_and_not_turned_to_later() -> None:
    circle = circle_of(LISTED[::-1])
    service = Service({LISTED[-1]: Word(serves=True), TOLD[0]: Word(serves=True)})
    await service.ask(circle)
    assert service.asked == [LISTED[-1]]
    circle.learn(TOLD)
    await service.ask(circle)
    assert service.asked == [LISTED[-1]]


def test_more_than_enough_are_not_kept() -> None:
    circle = Circle(TOLD)
    circle.learn([EngineAddress("controller", port) for port in range(1, 40)])
    assert len(circle.known) == CONTROLLERS_MAX
    assert circle.known[:2] == TOLD
