"""What the owner of a replica sees, and what it is told to do."""

import enum
from typing import TypeAlias

import attrs

from lunanexa_core.drivers.driver import Health
from lunanexa_core.ids import StartId
from lunanexa_core.lifecycle.record import ReplicaRecord
from lunanexa_core.southbound.heartbeat import EngineReadings, ExitReason, IdentityGrade

_UNKNOWN = EngineReadings()


@attrs.frozen
class Tick:
    """Time has passed."""


@attrs.frozen
class StopAsked:
    """The replica is wanted no more. ``hurry``: without drain or grace. ``drain_ms``: another limit for its
    requests in flight than the rules'."""

    hurry: bool = False
    drain_ms: int | None = None


@attrs.frozen(kw_only=True)
class MemorySeen:
    """This machine's memory: what a start could have of it now, and all there is. ``None`` is unknown."""

    available_mib: int | None = None
    total_mib: int | None = None


@attrs.frozen(kw_only=True)
class Prepared:
    """A start id and an address are at hand for the next start."""

    start: StartId
    host: str
    port: int
    memory: MemorySeen = MemorySeen()


@attrs.frozen
class NotPrepared:
    """There is none yet (store unavailable); try again soon. No fault of the engine."""


@attrs.frozen
class LeaseAwaited:
    """Nothing may be started now, and nothing was: the node was cut off, and has not heard yet what shall run."""


@attrs.frozen
class LeaseGranted:
    """Starts are allowed again."""


@attrs.frozen
class CutOff:
    """The node had no lease for longer than this replica may run so."""


@attrs.frozen
class Refused:
    """The specification can't be started on this node, now or later. ``start`` is the id of the start that
    never was, so that it can be told of."""

    start: StartId
    detail: str


@attrs.frozen
class LaunchFailed:
    """Nothing was started, and nothing of the start runs."""

    start: StartId
    detail: str


@attrs.frozen
class Exited:
    """The main process of ``start`` has ended; others of its group may live."""

    start: StartId
    reason: ExitReason


@attrs.frozen
class GroupGone:
    """No process of ``start`` is left."""

    start: StartId


@attrs.frozen(kw_only=True)
class Probed:
    """One look at the engine. ``health`` is ``None`` when it did not answer."""

    start: StartId
    health: Health | None
    grade: IdentityGrade = IdentityGrade.NONE
    wrong: bool = False
    """Another program answers there."""
    readings: EngineReadings = _UNKNOWN
    resident_mib: int | None = None
    """What the processes of the start hold."""


Observation: TypeAlias = (
    Tick
    | StopAsked
    | Prepared
    | NotPrepared
    | LeaseAwaited
    | LeaseGranted
    | CutOff
    | Refused
    | MemorySeen
    | LaunchFailed
    | Exited
    | GroupGone
    | Probed
)


class Action(enum.Enum):
    """What the owner of the replica does next, in this order, after the record is durable."""

    PREPARE = "prepare"
    SPAWN = "spawn"
    TERMINATE = "terminate"
    KILL = "kill"
    FORGET = "forget"


@attrs.frozen
class Step:
    """The replica from now on, and what that asks for."""

    record: ReplicaRecord
    actions: tuple[Action, ...] = ()
