"""What a node says of itself, and what the controller answers."""

import enum
from typing import Final

import attrs

from lunanexa_core.ids import AssignmentId, BootId, NodeId, StartId, is_identifier

HEARTBEAT_SCHEMA: Final = "lunanexa.heartbeat.v1"
COUNT_MAX: Final = 1 << 40
"""No count of a report is higher, so that sums over a fleet are numbers that documents can hold."""
TEXT_MAX: Final = 1_024
"""Characters of a word of a node's: what changes is a row of the journal. An engine's last lines are none."""
_PORT_MAX: Final = 65_535


class ReplicaState(enum.Enum):
    """Where a replica is in its life. Each state but AwaitingLease, Ready, Failed and Absent has a deadline."""

    AWAITING_LEASE = "awaiting_lease"
    """Its node was cut off and starts nothing before it has heard what shall run."""
    AWAITING_MEMORY = "awaiting_memory"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"
    ABSENT = "absent"


class IdentityGrade(enum.Enum):
    """How sure the node is that what answers is what it started (``proven`` is the surest)."""

    NONE = "none"
    DECLARED = "declared"
    BOUND = "bound"
    PROVEN = "proven"

    @property
    def routable(self) -> bool:
        return self in (IdentityGrade.BOUND, IdentityGrade.PROVEN)


@attrs.frozen(kw_only=True)
class ExitReason:
    """How the last process of a replica ended. ``unobserved``: nobody was there to see the status."""

    kind: str
    """``exited``, ``signalled``, ``unobserved``, ``start_timeout``, ``wrong_identity``, ``spawn_failed``,
    ``unhealthy``, ``refused`` (the specification can't be started here; ``last_lines`` says why), ``no_memory``
    (it was not started), ``memory_limit`` (it was stopped), for which ``detail`` says why, and ``cut_off`` (its node
    had no lease for longer than the deployment lets it run so)."""
    code: int | None = None
    signal: int | None = None
    detail: str | None = None
    """The node's own words, with what it measured; never the engine's."""
    last_lines: tuple[str, ...] = ()
    """The end of the engine's own log, bounded; it never leaves the operator plane."""


@attrs.frozen(kw_only=True)
class EngineReadings:
    """What the engine said of itself, and what its processes hold. ``None`` is unknown, never zero."""

    running: int | None = None
    waiting: int | None = None
    resident_mib: int | None = None
    """Resident memory of the engine's process group, read by its node."""
    age_ms: int = 0


@attrs.frozen(kw_only=True)
class ReplicaReport:
    """One replica as its node sees it."""

    assignment: AssignmentId
    generation: int
    start: StartId
    state: ReplicaState
    identity: IdentityGrade = IdentityGrade.NONE
    host: str | None = None
    port: int | None = None
    served_name: str | None = None
    slots: int = 0
    pid: int | None = None
    restarts: int = 0
    exit: ExitReason | None = None
    readings: EngineReadings = EngineReadings()

    def counts(self, at: str) -> dict[str, int | None]:
        """All its numbers that count something, by their place below ``at``."""
        return {
            f"{at}.generation": self.generation,
            f"{at}.port": self.port,
            f"{at}.slots": self.slots,
            f"{at}.pid": self.pid,
            f"{at}.restarts": self.restarts,
            f"{at}.readings.running": self.readings.running,
            f"{at}.readings.waiting": self.readings.waiting,
            f"{at}.readings.resident_mib": self.readings.resident_mib,
            f"{at}.readings.age_ms": self.readings.age_ms,
        }

    def texts(self, at: str) -> dict[str, str | None]:
        """All its words that a row of the journal keeps."""
        found = {f"{at}.host": self.host, f"{at}.served_name": self.served_name}
        if self.exit is not None:
            found |= {f"{at}.exit.kind": self.exit.kind, f"{at}.exit.detail": self.exit.detail}
        return found


@attrs.frozen(kw_only=True)
class RefusedAssignment:
    """An assignment of the accepted document that the node does not follow, and why."""

    assignment: AssignmentId
    refusal: str


@attrs.frozen
class UnstartedReplica:
    """A replica that the node has and of which no start has an id yet: why is what its state says."""

    assignment: AssignmentId
    state: ReplicaState


@attrs.frozen(kw_only=True)
class Heartbeat:
    """One report of a node. ``sequence`` rises by one within a boot of the agent's machine and process."""

    schema: str = HEARTBEAT_SCHEMA
    node: NodeId
    boot: BootId
    sequence: int
    epoch: int
    generation: int
    agent_version: str
    replicas: tuple[ReplicaReport, ...] = ()
    unstarted: tuple[UnstartedReplica, ...] = ()
    """What stands neither here nor there, the node does not have: nothing of it runs."""
    available_mib: int | None = None
    total_mib: int | None = None
    trust_version: int | None = None
    """Of the set that the node trusts by."""
    certificate: str | None = None
    """Serial of the certificate that the node shows."""
    leased: bool | None = None
    """Whether the node had a lease when it sent this; without one its data listener lets nobody in. ``None``: it does
    not say."""
    document_refusal: str | None = None
    """Why the newest offered document is not followed; ``None`` once one is."""
    refused: tuple[RefusedAssignment, ...] = ()
    skew_ms: int | None = None
    """By how much the controller's wall clock is ahead of the node's; ``None`` is unknown."""
    skew_error_ms: int | None = None

    def fault(self) -> tuple[str, str] | None:
        """The first member that no agent would send, and what it must be. Reading checked the types alone."""
        names: dict[str, str] = {"boot": self.boot}
        counts: dict[str, int | None] = {
            "epoch": self.epoch,
            "generation": self.generation,
            "trust_version": self.trust_version,
            "available_mib": self.available_mib,
            "total_mib": self.total_mib,
            "skew_error_ms": self.skew_error_ms,
        }
        texts: dict[str, str | None] = {
            "agent_version": self.agent_version,
            "certificate": self.certificate,
            "document_refusal": self.document_refusal,
        }
        for place, report in enumerate(self.replicas):
            at = f"replicas[{place}]"
            names |= {f"{at}.assignment": report.assignment, f"{at}.start": report.start}
            counts |= report.counts(at)
            texts |= report.texts(at)
        names |= {f"unstarted[{place}].assignment": one.assignment for place, one in enumerate(self.unstarted)}
        names |= {f"refused[{place}].assignment": one.assignment for place, one in enumerate(self.refused)}
        texts |= {f"refused[{place}].refusal": one.refusal for place, one in enumerate(self.refused)}
        for field, name in names.items():
            if not is_identifier(name):
                return field, "has other characters than ASCII letters, digits and -_.: or not 1 to 256 of them"
        if self.sequence < 1:
            return "sequence", "must be at least 1"
        if self.total_mib is not None and (self.available_mib or 0) > self.total_mib:
            return "available_mib", "must not be above total_mib"
        for field, count in counts.items():
            most = _PORT_MAX if field.endswith(".port") else COUNT_MAX
            if count is not None and not 0 <= count <= most:
                return field, f"must be 0 to {most}"
        for field, text in texts.items():
            if text is not None and len(text) > TEXT_MAX:
                return field, f"has more than {TEXT_MAX} characters"
        return None


@attrs.frozen(kw_only=True)
class HeartbeatAnswer:
    """The controller's word to one heartbeat: it echoes which one, and grants a lease from the moment
    the node *sent* it."""

    boot: BootId
    sequence: int
    epoch: int
    generation: int
    lease_ms: int
    wall_ms: int | None = None
    """The controller's wall clock as it answered; ``None``: it does not tell."""
