"""What befalls the processes: drawn from the seed before any of them is started."""

import enum
from collections.abc import Sequence
from itertools import combinations
from typing import Final

import attrs

from lunanexa_simulation.rng import Stream, Streams

BEFORE_MS: Final = 1_500
"""Longest that traffic runs before a strike: longer than an answer takes, so that it falls anywhere in one."""
DOWN_MS: Final = 1_000
"""Longest until a process that was killed is started again."""


class Part(enum.Enum):
    """Which of a fleet's processes."""

    CONTROLLER = "controller"
    AGENT = "agent"
    ENGINE = "engine"


@attrs.frozen
class Target:
    """One process. ``node`` counts from 1; the controller is of none, 0."""

    part: Part
    node: int = 0

    def __str__(self) -> str:
        return f"{self.part.value} {self.node}" if self.node else self.part.value


class Blow(enum.Enum):
    """What is done to the targets."""

    KILL = "kill -9"
    PAUSE = "SIGSTOP"
    """Until the controller holds its node for lost; then SIGCONT."""


@attrs.frozen(kw_only=True)
class Strike:
    """One blow. Its times are drawn for it alone: another strike more changes none of them."""

    number: int
    blow: Blow
    targets: tuple[Target, ...]
    before_ms: int
    """Traffic that was there runs on for so long first."""
    down_ms: int
    """So long until what we started ourselves is started again."""

    def __str__(self) -> str:
        return f"{self.blow.value} of {' and '.join(map(str, self.targets))}"

    def hits(self, part: Part) -> tuple[int, ...]:
        """The nodes whose ``part`` it is for."""
        return tuple(target.node for target in self.targets if target.part is part)


def strikes_of(seed: int, *, nodes: int, rounds: int) -> tuple[Strike, ...]:
    """Each round has a strike of every kind, in an order of its own."""
    strikes: list[Strike] = []
    streams = Streams(seed)
    for turn in range(rounds):
        draw = streams.stream(f"strikes/{turn}")
        for blow, targets in draw.sample(chosen := _kinds(draw, nodes), len(chosen)):
            strikes.append(
                Strike(
                    number=len(strikes) + 1,
                    blow=blow,
                    targets=targets,
                    before_ms=draw.randint(0, BEFORE_MS),
                    down_ms=draw.randint(0, DOWN_MS),
                )
            )
    return tuple(strikes)


def _kinds(draw: Stream, nodes: int) -> Sequence[tuple[Blow, tuple[Target, ...]]]:
    def one(part: Part) -> Target:
        return Target(part, draw.randint(1, nodes))

    controller = Target(Part.CONTROLLER)
    everything = [controller, *(Target(part, node) for part in (Part.AGENT, Part.ENGINE) for node in _upto(nodes))]
    return (
        (Blow.KILL, (one(Part.ENGINE),)),
        (Blow.KILL, (one(Part.AGENT),)),
        (Blow.KILL, (controller,)),
        (Blow.KILL, draw.choice(list(combinations(everything, 2)))),
        (Blow.PAUSE, (one(Part.AGENT),)),
    )


def _upto(nodes: int) -> range:
    return range(1, nodes + 1)
