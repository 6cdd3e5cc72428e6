"""What happened in a run, as spans and marks on lanes: one lane for each controller and each node.

A recorder looks at the world at every quiescent instant, after the checkers. What it sees it compares with what it saw
before; it changes nothing, so that a run with it is the run without it.
"""

import enum
from collections.abc import Iterator
from typing import Final, TypeAlias

import attrs

from lunanexa_core.ids import WorkloadId
from lunanexa_core.outcomes import Outcome
from lunanexa_simulation.controller_host import ControllerHost
from lunanexa_simulation.disk import DiskFaults
from lunanexa_simulation.node_host import NodeHost
from lunanexa_simulation.picture import standing
from lunanexa_simulation.trace import virtual_ms
from lunanexa_simulation.world import World

OPERATOR_LANE: Final = "the world"
_BROKEN: Final = ": BROKEN"


class Track(enum.Enum):
    """What a span is about; a lane shows them one below the other."""

    FAULT = "fault"
    STATE = "state"
    ENGINE = "engine"
    REQUEST = "request"


class Tone(enum.Enum):
    """How a span ended, or is."""

    PLAIN = "plain"
    GOOD = "good"
    LEFT = "left"
    BAD = "bad"


@attrs.frozen(kw_only=True)
class Span:
    """Something that lasted."""

    lane: str
    track: Track
    label: str
    begin_ms: int
    end_ms: int
    tone: Tone = Tone.PLAIN


@attrs.frozen(kw_only=True)
class Mark:
    """Something that happened at one instant."""

    lane: str
    label: str
    at_ms: int
    broken: bool = False


_Key: TypeAlias = tuple[str, Track, str]


@attrs.define
class Timeline:
    """Records one run: give :meth:`attend` to its manner, and call :meth:`close` when it is over."""

    spans: list[Span] = attrs.Factory(list)
    marks: list[Mark] = attrs.Factory(list)
    lanes: list[str] = attrs.Factory(list)
    _open: dict[_Key, int] = attrs.Factory(dict)
    _world: World | None = None
    _last_ms: int = 0

    def attend(self, world: World) -> None:
        """Looks at this world from now on."""
        self._world = world
        self.lanes = [
            *(host.host for host in world.controllers),
            *(str(host.name) for host in world.nodes),
            OPERATOR_LANE,
        ]
        world.run.trace.heard = self._hear
        world.run.checks.append(self._look)

    def close(self, problem: str | None) -> None:
        """Ends what lasts yet; what was broken stands at the end."""
        for key, began_ms in self._open.items():
            self._add(key, began_ms, self._last_ms)
        self._open.clear()
        if problem is not None:
            self.marks.append(Mark(lane=OPERATOR_LANE, label=problem, at_ms=self._last_ms, broken=True))

    def _hear(self, actor: str, event: str) -> None:
        broken = event.endswith(_BROKEN)
        if actor == "world" or broken:
            lane = next((lane for lane in self.lanes if event.startswith(f"{lane}:")), OPERATOR_LANE)
            self.marks.append(Mark(lane=lane, label=event, at_ms=virtual_ms(), broken=broken))

    def _look(self) -> None:
        assert self._world is not None
        now, self._last_ms = dict.fromkeys(_standing(self._world)), virtual_ms()
        for key in [key for key in self._open if key not in now]:
            self._add(key, self._open.pop(key), self._last_ms)
        for key in now:
            self._open.setdefault(key, self._last_ms)

    def _add(self, key: _Key, began_ms: int, ended_ms: int) -> None:
        lane, track, label = key
        tone = self._tone(label) if track is Track.REQUEST else Tone.PLAIN
        span = Span(lane=lane, track=track, label=label, begin_ms=began_ms, end_ms=ended_ms, tone=tone)
        self.spans.append(span)

    def _tone(self, workload: str) -> Tone:
        assert self._world is not None
        receipts = self._world.sight.shadow.receipts.get(WorkloadId(workload))
        if receipts is None:  # Another lane has it now.
            return Tone.PLAIN
        outcome = receipts[-1].settlement.outcome
        return Tone.GOOD if outcome is None else Tone.LEFT if outcome is Outcome.CANCELLED_BY_CALLER else Tone.BAD


def _standing(world: World) -> Iterator[_Key]:
    """All that lasts now. A request stands in the lane of the node that works on it, else in the controller's."""
    for number, host in enumerate(world.controllers):
        yield from _of_controller(world, number, host)
    engines: dict[str, str] = {}
    for node in world.nodes:
        engines.update((start, str(node.name)) for _, start in node.running())
        yield from _of_node(world, node)
    leader = world.controller
    held = leader.kernel.observed.held if leader.up else {}
    for workload in sorted(world.sight.shadow.open):
        grant = held.get(workload)
        lane = leader.host if grant is None else engines.get(grant.start, leader.host)
        yield lane, Track.REQUEST, workload


def _of_controller(world: World, number: int, host: ControllerHost) -> Iterator[_Key]:
    now = standing(host)
    yield host.host, Track.STATE if host.up else Track.FAULT, now
    if host.is_cut:
        yield host.host, Track.FAULT, "cut from the journal"
    if number == 0:
        for told in _of_disk(host.disk.faults, world.plan.sync_ms):
            yield host.host, Track.FAULT, f"journal: {told}"


def _of_node(world: World, node: NodeHost) -> Iterator[_Key]:
    lane = str(node.name)
    yield lane, Track.STATE if node.up else Track.FAULT, "agent" if node.up else "no agent"
    for process in node.engines():
        hangs = " hangs" if process.hung else ""
        yield lane, Track.FAULT if hangs else Track.ENGINE, f"engine {process.start}{hangs}"
    for told in _of_disk(node.disk.faults, world.plan.sync_ms):
        yield lane, Track.FAULT, told
    for host in world.controllers:
        there, back = world.network.link(node.name, host.host), world.network.link(host.host, node.name)
        if there.blocked or back.blocked:
            way = "in both ways" if there.blocked and back.blocked else "there" if there.blocked else "back"
            yield lane, Track.FAULT, f"cut from {host.host} {way}"
        if there.latency_ms != world.plan.latency_ms:
            yield lane, Track.FAULT, f"slow packets to {host.host}"
        if world.network.link(host.host, node.data_host).blocked:
            yield lane, Track.FAULT, f"no data from {host.host}"


def _of_disk(faults: DiskFaults, usual_ms: int) -> Iterator[str]:
    told = (
        ("disk full", faults.full),
        ("no disk", faults.unavailable),
        ("disk corrupt", faults.corrupt),
        ("disk does not answer", faults.unknown_outcomes > 0),
        ("disk slow", faults.delay_ms > usual_ms),
    )
    return (name for name, on in told if on)
