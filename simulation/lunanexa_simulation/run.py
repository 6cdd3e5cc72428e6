"""One simulated run: from one seed, on virtual time, deterministic to the last step of the scheduler.

Trio has no public switch for a deterministic order of tasks. Its own tests use two private names, and
both are needed: the flag sorts what came out of sets, the seed decides what Trio shuffles. They are set and
put back here and nowhere else; a Trio without them fails loudly.

The clock is not Trio's autojump, under which a deadlock spins for ever: a driver task waits until every
other task is blocked, lets the checkers look, then jumps to the next deadline.
"""

import enum
import hashlib
import math
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import attrs
import structlog
import trio
import trio.testing
from trio._core import _run as scheduler

from lunanexa_simulation.rng import Streams
from lunanexa_simulation.trace import LogBuffer, Schedule, Trace, virtual_ms

_FLAG: Final = "_ALLOW_DETERMINISTIC_SCHEDULING"
_SHUFFLER: Final = "_r"


class Verdict(enum.Enum):
    """How a run ended. The value is the exit code of ``lunanexa-sim``."""

    HELD = 0
    SAFETY_BROKEN = 1
    LIVENESS_BROKEN = 2
    CRASHED = 3
    NOT_DETERMINISTIC = 4


class SafetyBroken(AssertionError):
    """Something happened that must never happen. The message begins with the name of what was broken."""


class LivenessBroken(AssertionError):
    """Something that must happen did not: within its time, within the horizon, or ever (deadlock)."""


Check: TypeAlias = Callable[[], None]
"""Looks at the world at a quiescent instant; raises :class:`SafetyBroken`. It may wake tasks, never wait."""


@attrs.frozen
class Kept:
    """One promise of a scenario, and whether it was kept."""

    name: str
    held: bool
    at_ms: int


@attrs.define
class Run:
    """What a running world holds of its run. ``checks`` may grow while it runs."""

    seed: int
    streams: Streams
    trace: Trace
    logs: LogBuffer
    checks: list[Check]
    instants: int = 0
    """Quiescent instants so far."""
    promises: list[Kept] = attrs.Factory(list)
    asked: Counter[str] = attrs.Factory(Counter)
    """How often each invariant was asked."""

    def promise(self, name: str, held: bool) -> None:
        """Notes how a scenario's promise ended."""
        self.promises.append(Kept(name, held, virtual_ms()))
        self.trace.record("scenario", f"{name}: {'held' if held else 'BROKEN'}")


@attrs.frozen(kw_only=True)
class RunResult:
    """How a run ended, and what tells it from others."""

    seed: int
    verdict: Verdict
    problem: str | None
    detail: str
    """For whoever mends it: the traceback, or the tree of tasks."""
    digest: str
    virtual_ms: int
    instants: int
    steps: int
    promises: tuple[Kept, ...]
    asked: Mapping[str, int]
    tail: tuple[str, ...]


@contextmanager
def deterministic_scheduling(seed: int) -> Iterator[None]:
    """Trio's order of tasks is decided by ``seed`` inside, and what it was before outside."""
    names = vars(scheduler)
    assert isinstance(names.get(_FLAG), bool), f"this Trio has no {_FLAG}"
    assert hasattr(names.get(_SHUFFLER), "setstate"), f"this Trio has no {_SHUFFLER}"
    shuffler = scheduler._r
    flag, state = names[_FLAG], shuffler.getstate()
    names[_FLAG] = True
    shuffler.seed(seed)
    try:
        yield
    finally:
        names[_FLAG] = flag
        shuffler.setstate(state)


@contextmanager
def _logs_to(buffer: LogBuffer) -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, buffer.processor],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        context_class=dict,
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)


def run_simulated(
    main: Callable[[Run], Awaitable[None]], seed: int, *, horizon_ms: int, on_quiescent: Sequence[Check] = ()
) -> RunResult:
    """Runs ``main`` to its end, or until something is broken. ``horizon_ms`` is the virtual time that it may
    take; ``on_quiescent`` are looks at the world each time that nothing can go on without time passing."""
    clock, trace, schedule = trio.testing.MockClock(), Trace(), Schedule()
    run = Run(seed, Streams(seed), trace, LogBuffer(trace), list(on_quiescent))
    ended_ms = 0
    broken: BaseException | None = None

    async def loop() -> None:
        nonlocal ended_ms
        try:
            await _drive(main, run, clock, horizon_ms)
        finally:
            ended_ms = virtual_ms()

    with deterministic_scheduling(seed), _logs_to(run.logs):
        try:
            trio.run(loop, clock=clock, instruments=[schedule])  # noqa: TID251  # the one loop of a simulated world
        except BaseExceptionGroup as group:
            broken = _first_cause(group)
    return RunResult(
        seed=seed,
        verdict=_verdict(broken),
        problem=None if broken is None else _problem(broken),
        detail="" if broken is None else _detail(broken),
        digest=hashlib.sha256(f"{trace.digest()} {schedule.digest()}".encode()).hexdigest(),
        virtual_ms=ended_ms,
        instants=run.instants,
        steps=schedule.steps,
        promises=tuple(run.promises),
        asked=dict(run.asked),
        tail=trace.tail,
    )


async def _drive(
    main: Callable[[Run], Awaitable[None]], run: Run, clock: trio.testing.MockClock, horizon_ms: int
) -> None:
    driver = _Driver(run, clock, horizon_ms)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.pass_time)
        try:
            with driver.world:
                await main(run)
        finally:
            driver.life.cancel("the simulated run is over")


class _Driver:
    """The only one that lets time pass. It outlives the world: cleanup that is shielded and timed needs time
    also after something broke."""

    def __init__(self, run: Run, clock: trio.testing.MockClock, horizon_ms: int) -> None:
        self.life = trio.CancelScope(shield=True)
        self.world = trio.CancelScope()
        self.broken: Exception | None = None
        self._run = run
        self._clock = clock
        self._horizon_ms = horizon_ms

    async def pass_time(self) -> None:
        with self.life:
            while True:
                await trio.testing.wait_all_tasks_blocked()
                self._look()
                statistics = trio.lowlevel.current_statistics()
                if not statistics.tasks_runnable:  # A check may have woken somebody, for whom it is still this instant.
                    self._pass(statistics.seconds_to_next_deadline)
        if self.broken is not None:
            raise self.broken

    def _look(self) -> None:
        if self.broken is not None:
            return
        self._run.instants += 1
        try:
            # A thread ends when it likes: time that passes beside it is another time in each run.
            assert trio.testing.active_thread_count() == 0, "a simulated run has no threads"
            for check in tuple(self._run.checks):
                check()
        except Exception as broken:  # noqa: BLE001  # a checker's own bug ends the run too, and not by ending time
            self._end(broken)

    def _pass(self, step_s: float) -> None:
        late = (trio.current_time() + step_s) * 1_000 > self._horizon_ms
        if self.broken is None and (math.isinf(step_s) or late):
            what = f"horizon: not over after {self._horizon_ms} virtual ms"
            if math.isinf(step_s):
                what = "deadlock: no task can go on and no timer is set"
            self._end(LivenessBroken(f"{what}\n{task_tree()}"))
        elif math.isinf(step_s):
            # Something waits shielded for what will never come: the run is broken already, so it may be torn down.
            _unshield(trio.lowlevel.current_root_task())
        elif step_s > 0:
            self._clock.jump(step_s)

    def _end(self, broken: Exception) -> None:
        self.broken = broken
        self.world.cancel("the simulated run is broken")


def _unshield(task: trio.lowlevel.Task | None) -> None:
    """Opens every shield but the driver's."""
    if task is None or task is trio.lowlevel.current_task():
        return
    status: Any = task._cancel_status
    while status is not None:
        status._scope.shield = False
        status = status._parent
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            _unshield(child)


def task_tree() -> str:
    """Every task of the running loop, and in which of its functions it waits."""
    root = trio.lowlevel.current_root_task()
    lines: list[str] = []
    if root is not None:
        _draw(root, 0, lines)
    return "\n".join(lines)


def _draw(task: trio.lowlevel.Task, depth: int, lines: list[str]) -> None:
    frames = [frame for frame, _ in task.iter_await_frames()]
    ours = [frame.f_code.co_qualname for frame in frames if not frame.f_globals["__name__"].startswith("trio.")]
    waits_in = frames[-3:][0].f_code.co_name if frames else ""
    lines.append(f"{'  ' * depth}{task.name.rpartition('.')[2]}: {' > '.join((*ours[-4:], waits_in))}")
    for nursery in task.child_nurseries:
        # A set: ordered by name here, since addresses would order it differently each time.
        for child in sorted(nursery.child_tasks, key=lambda child: child.name):
            _draw(child, depth + 1, lines)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What decides the verdict. A broken invariant says more than the crashes that came of it."""
    leaves = list(_leaves(group))
    if any(not isinstance(leaf, Exception) for leaf in leaves):
        raise group  # Ctrl-C and the like are not the world's doing.
    return min(leaves, key=lambda leaf: _RANK.index(_verdict(leaf)))


_RANK: Final = (Verdict.SAFETY_BROKEN, Verdict.CRASHED, Verdict.LIVENESS_BROKEN)


def _verdict(broken: BaseException | None) -> Verdict:
    match broken:
        case None:
            return Verdict.HELD
        case SafetyBroken():
            return Verdict.SAFETY_BROKEN
        case LivenessBroken():
            return Verdict.LIVENESS_BROKEN
        case _:
            return Verdict.CRASHED


def _problem(broken: BaseException) -> str:
    told = str(broken).partition("\n")[0]
    return told if isinstance(broken, SafetyBroken | LivenessBroken) else f"{type(broken).__name__}: {told}"


def _detail(broken: BaseException) -> str:
    if isinstance(broken, LivenessBroken):
        return str(broken).partition("\n")[2]
    return "".join(traceback.format_exception(broken))
