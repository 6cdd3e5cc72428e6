"""A world, its callers and its mishaps, all drawn from a seed before anything runs.

Each seed leaves some kinds of mishaps out: what only happens where something else does not would else never happen.
A mishap draws from a stream of its own, so that to leave one out changes nothing that another says.

What a *drawing* makes of a seed is never changed, for seeds that once failed are kept with theirs: a new kind of
mishap, or another number, is a new drawing.
"""

from collections.abc import Sequence
from typing import Final

import attrs

from lunanexa_simulation.mishaps import KINDS, NEWEST, Hands, Kind
from lunanexa_simulation.rng import Stream
from lunanexa_simulation.world_plan import WorldPlan

FAULTS_MS: Final = (8_000, 30_000)
FIRST_MS: Final = 200
SNAPSHOT_ROWS: Final = (20, 40)
"""Of the first two drawings, and of the others."""
PACES_MS: Final = (500, 1_500, 4_000)
"""So long it takes from one mishap to the next, about."""
ENGINE_MIB: Final = 48 * 1024
EXCLUSIVE: Final = {"exclusive": True, "cut_off_keep_ms": 3_000}


@attrs.frozen(kw_only=True)
class Drawn:
    """One mishap: when, what, and to which of those that there are of it."""

    number: int
    at_ms: int
    kind: str
    target: int

    @property
    def told(self) -> str:
        """For people."""
        return f"{self.at_ms:>6} ms: {self.kind} ({KINDS[self.kind].hands.value} {self.target + 1})"


@attrs.frozen(kw_only=True)
class MixedPlan:
    """What a seed has in store."""

    world: WorldPlan
    replicas: int
    callers: int
    faults_ms: int
    mishaps: Sequence[Drawn]


def draw_plan(draw: Stream, drawing: int = NEWEST, lasting_ms: int | None = None) -> MixedPlan:
    """The plan of a seed, from a stream that nothing else draws from. ``lasting_ms``: mishaps go on for so long, and
    not as the seed draws it."""
    world = _world(draw)
    drawn_ms, pace_ms = draw.randint(*FAULTS_MS), draw.choice(PACES_MS)
    faults_ms = drawn_ms if lasting_ms is None else lasting_ms
    # A snapshot is of all that is there: the longer a world lasts, the more there is, and the fewer are needed.
    rows = SNAPSHOT_ROWS[drawing >= 3] * max(1, faults_ms // FAULTS_MS[1])
    world = attrs.evolve(world, snapshot_rows=rows)
    known = [kind for kind in KINDS.values() if _may_be(kind, world, drawing)]
    kinds = _some(draw, [kind for kind in known if not kind.lengthy])
    later = [kind for kind in known if kind.lengthy]
    mishaps: list[Drawn] = []
    at_ms = draw.randint(FIRST_MS, pace_ms)
    while kinds and at_ms < faults_ms:
        if later and at_ms >= drawn_ms:
            kinds, later = [*kinds, *_some(draw, later)], []
        kind = draw.choice(kinds)
        target = draw.randrange(count_of(kind.hands, world))
        mishaps.append(Drawn(number=len(mishaps) + 1, at_ms=at_ms, kind=kind.name, target=target))
        at_ms += draw.randint(FIRST_MS, 2 * pace_ms)
    return MixedPlan(
        world=world,
        replicas=1 if world.specification else draw.randint((world.nodes + 1) // 2, world.nodes),
        callers=draw.randint(2, 6),
        faults_ms=faults_ms,
        mishaps=mishaps,
    )


def _world(draw: Stream) -> WorldPlan:
    longest_ms = draw.choice((1, 4, 30))
    return WorldPlan(
        nodes=draw.choice((1, 2, 2, 3, 3, 4)),
        controllers=draw.choice((1, 1, 2, 3)),
        latency_ms=(0, longest_ms),
        sync_ms=draw.choice((0, 2, 10)),
        engine_arguments=("--ttft-ms", str(draw.choice((8, 64, 250))), "--itl-ms", str(draw.choice((32, 128)))),
        engine_slots=draw.randint(1, 3),
        restart_budget=1_000,
        engine_memory={"memory_mib": ENGINE_MIB, "memory_wait_ms": 5_000} if draw.random() < 0.5 else {},
        specification=EXCLUSIVE if draw.random() < 0.2 else {},
        linger_ms=draw.choice((0, 3_000)),
        doors=draw.random() < 0.8,
    )


def _may_be(kind: Kind, world: WorldPlan, drawing: int) -> bool:
    return kind.since <= drawing and (world.doors or kind.hands is not Hands.DATA_LINK)


def _some(draw: Stream, kinds: Sequence[Kind]) -> list[Kind]:
    return [kind for kind in kinds if draw.random() < 0.65]


def count_of(hands: Hands, world: WorldPlan) -> int:
    """How many there are of what a mishap may have in its hands."""
    match hands:
        case Hands.CONTROLLER | Hands.CONTROLLER_CLOCK:
            return world.controllers
        case Hands.NODE | Hands.MEMORY | Hands.LINK | Hands.DATA_LINK | Hands.NODE_CLOCK:
            return world.nodes
        case Hands.JOURNAL | Hands.OPERATOR | Hands.TRUST | Hands.CALLERS:
            return 1
