"""One simulated run: from one seed, on virtual time, deterministic to the last step of the scheduler.

Trio has no public switch for a deterministic order of tasks. Its own tests use two private names, and
both are needed: the flag sorts what came out of sets, the seed decides what Trio shuffles. They are set and
put back here and nowhere else; a Trio without them fails loudly.
"""

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
import structlog
import trio
from trio._core import _run as scheduler

from lunanexa_simulation.rng import Streams
from lunanexa_simulation.trace import LogBuffer, Schedule, Trace, virtual_ms
from lunanexa_simulation.verdicts import (
    StoppedHere,
    Verdict,
    detail_of,
    first_cause,
    problem_of,
    verdict_of,
)
from lunanexa_simulation.virtual_time import VirtualTime

if TYPE_CHECKING:
    from lunanexa_simulation.site import Site
    from lunanexa_simulation.world import World

_FLAG: Final = "_ALLOW_DETERMINISTIC_SCHEDULING"
_SHUFFLER: Final = "_r"


Check: TypeAlias = Callable[[], None]
"""Looks at the world at a quiescent instant; raises :class:`SafetyBroken`. It may wake tasks, never wait."""


@attrs.frozen
class Kept:
    """One promise of a scenario, and whether it was kept."""

    name: str
    held: bool
    at_ms: int


@attrs.frozen
class Mishap:
    """Something that befell the world, drawn from the seed before anything ran."""

    number: int
    told: str


@attrs.frozen(kw_only=True)
class Manner:
    """How somebody looks at a run, beside its scenario. But for ``only`` and ``faults_ms`` it changes nothing in it."""

    attend: Callable[["World"], None] = lambda _: None
    """Called with the world when it is made."""
    attend_site: Callable[["Site"], None] = lambda _: None
    """The same of a machine without a network."""
    until_ms: int | None = None
    """The run stops there: nothing that is due later happens. ``at_stop`` is called then, with all as it stands."""
    at_stop: Callable[[], None] = lambda: None
    only: frozenset[int] | None = None
    """Of the drawn mishaps only those with these numbers happen; ``None``: all."""
    faults_ms: int | None = None
    """Mishaps are drawn for so long a time; ``None``: as the seed has it."""


@attrs.define
class Run:
    """What a running world holds of its run. ``checks`` may grow while it runs."""

    seed: int
    streams: Streams
    trace: Trace
    logs: LogBuffer
    checks: list[Check]
    manner: Manner = attrs.Factory(Manner)
    instants: int = 0
    """Quiescent instants so far."""
    promises: list[Kept] = attrs.Factory(list)
    asked: Counter[str] = attrs.Factory(Counter)
    """How often each invariant was asked."""
    happened: Counter[str] = attrs.Factory(Counter)
    """How often what happened, as the scenario counts it: ``mishap agent dies``, ``answer whole``."""
    drawn: Sequence[Mishap] = ()
    """Every mishap that the seed has for this run."""

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
    happened: Mapping[str, int]
    drawn: tuple[Mishap, ...]
    faults_ms: int | None
    """As the manner had it."""


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
def logs_to(buffer: LogBuffer) -> Iterator[None]:
    """The services' log lines go there inside, and where they went before outside."""
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
    main: Callable[[Run], Awaitable[None]],
    seed: int,
    *,
    horizon_ms: int,
    on_quiescent: Sequence[Check] = (),
    manner: Manner | None = None,
) -> RunResult:
    """Runs ``main`` to its end, or until something is broken. ``horizon_ms`` is the virtual time that it may
    take; ``on_quiescent`` are looks at the world each time that nothing can go on without time passing."""
    trace, schedule = Trace(), Schedule()
    run = Run(seed, Streams(seed), trace, LogBuffer(trace), list(on_quiescent), manner or Manner())
    time = VirtualTime(run, horizon_ms)
    ended_ms = 0
    broken: BaseException | None = None

    async def loop() -> None:
        nonlocal ended_ms
        try:
            await time.carry(main)
        finally:
            ended_ms = virtual_ms()

    with deterministic_scheduling(seed), logs_to(run.logs):
        try:
            trio.run(loop, clock=time, instruments=[schedule])  # noqa: TID251  # the one loop of a simulated world
        except BaseExceptionGroup as group:
            broken = first_cause(group)
    if isinstance(broken, StoppedHere):
        broken = None
    return RunResult(
        seed=seed,
        verdict=verdict_of(broken),
        problem=None if broken is None else problem_of(broken),
        detail="" if broken is None else detail_of(broken),
        digest=hashlib.sha256(f"{trace.digest()} {schedule.digest()}".encode()).hexdigest(),
        virtual_ms=ended_ms,
        instants=run.instants,
        steps=schedule.steps,
        promises=tuple(run.promises),
        asked=dict(run.asked),
        tail=trace.tail,
        happened=dict(run.happened),
        drawn=tuple(run.drawn),
        faults_ms=run.manner.faults_ms,
    )
