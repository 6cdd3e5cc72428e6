"""What is known of one replica: the part that survives the agent, and the part that lives by its clock."""

import enum

import attrs

from lunanexa_core.drivers.catalog import DRIVERS
from lunanexa_core.ids import StartId
from lunanexa_core.southbound.documents import DesiredAssignment
from lunanexa_core.southbound.heartbeat import ExitReason, IdentityGrade, ReplicaState


class Ending(enum.Enum):
    """What follows once a stop is finished."""

    ABSENT = "absent"
    RESTART = "restart"
    AWAIT_LEASE = "await_lease"


@attrs.frozen(kw_only=True)
class ReplicaRecord:
    """One replica. ``launched`` says that a process group of ``start`` may exist: as long as it is true no
    other start of this assignment may be made. Members ending in ``_ms`` are readings of this machine's
    monotonic clock and mean nothing after a restart of the agent."""

    assignment: DesiredAssignment
    state: ReplicaState
    start: StartId | None = None
    """The newest start; ``None`` while the next one is prepared."""
    last_start: StartId | None = None
    """The newest start, also while the next one is prepared: what the node is known by until then."""
    host: str | None = None
    port: int | None = None
    launched: bool = False
    ending: Ending | None = None
    restarts: int = 0
    """Crashes in a row; a long run sets it back to 0."""
    exit: ExitReason | None = None
    grade: IdentityGrade = IdentityGrade.NONE
    since_ms: int = 0
    deadline_ms: int | None = None
    ready_since_ms: int | None = None
    unhealthy_since_ms: int | None = None
    kills: int = 0
    """How often SIGKILL was sent to the present start."""
    terminations: int = 0
    available_mib: int | None = None
    """The newest reading of the memory that this start waits for."""

    def durable(self) -> "ReplicaRecord":
        """What must be on disk: equal for two records that differ only by this run of the agent."""
        return attrs.evolve(
            self,
            grade=IdentityGrade.NONE,
            since_ms=0,
            deadline_ms=None,
            ready_since_ms=None,
            unhealthy_since_ms=None,
            kills=0,
            terminations=0,
            available_mib=None,
        )


@attrs.frozen(kw_only=True)
class ReplicaRules:
    """The numbers that one replica lives by."""

    adopted: bool
    """It runs without us: nothing is started or stopped, and it is never given up."""
    start_timeout_ms: int
    stop_timeout_ms: int
    second_terminate: bool
    restart_budget: int
    drain_ms: int = 30_000
    drain_quiet_ms: int = 500
    """How long a draining engine must have been idle at least: grants that were on their way arrive."""
    unhealthy_ms: int = 15_000
    kill_repeat_ms: int = 5_000
    prepare_retry_ms: int = 1_000
    fresh_budget_ms: int = 600_000
    memory_mib: int | None = None
    memory_wait_ms: int = 120_000
    memory_limit_mib: int | None = None
    cut_off_keep_ms: int | None = None
    """How long it runs on after the node's lease has lapsed; ``None``: without limit."""


def rules_for(assignment: DesiredAssignment) -> ReplicaRules:
    """The rules that an assignment sets. An unknown driver is refused when the start is planned."""
    engine = assignment.engine
    driver = DRIVERS.get(engine.driver)
    adopted = engine.url is not None
    return ReplicaRules(
        adopted=adopted,
        start_timeout_ms=max(1, engine.start_timeout_ms),
        stop_timeout_ms=max(1, engine.stop_timeout_ms),
        second_terminate=driver is not None and driver.stop.second_terminate,
        restart_budget=max(0, engine.restart_budget),
        memory_mib=None if adopted else engine.memory_mib,
        memory_wait_ms=max(1, engine.memory_wait_ms),
        memory_limit_mib=None if adopted else engine.memory_limit_mib,
        cut_off_keep_ms=None if adopted else assignment.cut_off_keep_ms,
    )
