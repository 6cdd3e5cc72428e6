"""What ``lunanexa-sim`` says of runs, as documents: schema ``lunanexa.simulation.v1``.

What was found is about protocol and recovery. It says nothing of accelerator speed, and each document says so.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from lunanexa_core.contract.schema import Schema, SchemaBook, rules
from lunanexa_simulation.run import RunResult
from lunanexa_simulation.verdicts import Verdict

SCHEMA: Final = "lunanexa.simulation.v1"
HELD: Final = "held"
BROKEN: Final = "broken"
_WORDS: Final = tuple(verdict.name.lower() for verdict in Verdict)


def _kind(kind: str) -> Any:
    return attrs.field(default=kind, metadata=rules(const=kind))


_VERDICT: Final = rules(enum=[*_WORDS])
_EXIT_CODE: Final = rules(minimum=0, maximum=4)
_HELD: Final = rules(enum=[HELD, BROKEN])


@attrs.frozen(kw_only=True)
class CheckDocument:
    """One promise of a scenario."""

    name: str
    verdict: str = attrs.field(metadata=_HELD)
    at_ms: int


@attrs.frozen(kw_only=True)
class InvariantDocument:
    """One invariant, and at how many instants it was asked."""

    name: str
    verdict: str = attrs.field(metadata=_HELD)
    times_asked: int


@attrs.frozen(kw_only=True)
class MishapDocument:
    """One mishap that the seed has in store."""

    number: int
    told: str


@attrs.frozen(kw_only=True)
class RunDocument:
    """One run. ``digest`` is its identity: two runs are the same run exactly when their digests are equal."""

    schema: str = attrs.field(default=SCHEMA, metadata=rules(const=SCHEMA))
    kind: str = _kind("run")
    scenario: str
    seed: int
    commit: str | None
    verdict: str = attrs.field(metadata=_VERDICT)
    exit_code: int = attrs.field(metadata=_EXIT_CODE)
    problem: str | None
    """What broke first."""
    detail: str | None
    digest: str
    virtual_ms: int
    quiescent_instants: int
    scheduler_steps: int
    checks: tuple[CheckDocument, ...]
    invariants: tuple[InvariantDocument, ...]
    happened: dict[str, int]
    mishaps: tuple[MishapDocument, ...]
    trace_tail: tuple[str, ...]
    deterministic: bool | None = None
    """Whether two processes agreed; ``None``: nobody asked."""
    hardware_performance_validated: bool = attrs.field(default=False, metadata=rules(const=False))


@attrs.frozen(kw_only=True)
class SwarmDocument:
    """Many seeds. ``digest`` is that of the digests of all its runs, in the order of their seeds."""

    schema: str = attrs.field(default=SCHEMA, metadata=rules(const=SCHEMA))
    kind: str = _kind("swarm")
    scenario: str
    first_seed: int
    seeds: int
    """How many were to be run."""
    seeds_run: int
    commit: str | None
    verdict: str = attrs.field(metadata=_VERDICT)
    exit_code: int = attrs.field(metadata=_EXIT_CODE)
    digest: str
    virtual_ms: int
    quiescent_instants: int
    verdicts: dict[str, int]
    """How many runs ended so."""
    invariants: tuple[InvariantDocument, ...]
    happened: dict[str, int]
    failures: tuple[RunDocument, ...]
    hardware_performance_validated: bool = attrs.field(default=False, metadata=rules(const=False))


@attrs.frozen(kw_only=True)
class StateDocument:
    """How a world stands at one instant: lines for people, by what they are about."""

    about: str
    lines: tuple[str, ...]


@attrs.frozen(kw_only=True)
class ReplayDocument:
    """A run that was stopped at an instant, and the world as it stood then."""

    schema: str = attrs.field(default=SCHEMA, metadata=rules(const=SCHEMA))
    kind: str = _kind("replay")
    until_ms: int
    run: RunDocument
    state: tuple[StateDocument, ...]
    """Empty where the run was over before."""
    hardware_performance_validated: bool = attrs.field(default=False, metadata=rules(const=False))


@attrs.frozen(kw_only=True)
class ShrinkDocument:
    """The smallest list of mishaps that was found with which a run still fails as it did with all."""

    schema: str = attrs.field(default=SCHEMA, metadata=rules(const=SCHEMA))
    kind: str = _kind("shrink")
    mishaps_before: int
    runs: int
    """How many it took."""
    kept: tuple[MishapDocument, ...]
    run: RunDocument
    """The run with those alone."""
    hardware_performance_validated: bool = attrs.field(default=False, metadata=rules(const=False))


@attrs.frozen(kw_only=True)
class ScenarioDocument:
    """One scenario."""

    name: str
    summary: str
    waits_for: str | None = None
    """The feature that it waits for; ``None``: it is there."""


@attrs.frozen(kw_only=True)
class ListDocument:
    """The scenarios, and those that are planned."""

    schema: str = attrs.field(default=SCHEMA, metadata=rules(const=SCHEMA))
    kind: str = _kind("list")
    scenarios: tuple[ScenarioDocument, ...]
    hardware_performance_validated: bool = attrs.field(default=False, metadata=rules(const=False))


@attrs.frozen(kw_only=True)
class ServeDocument:
    """One session on real time. What the seed decides is less than in a run, so that there is no ``digest``."""

    schema: str = attrs.field(default=SCHEMA, metadata=rules(const=SCHEMA))
    kind: str = _kind("serve")
    seed: int
    commit: str | None
    nodes: int
    controllers: int
    verdict: str = attrs.field(metadata=_VERDICT)
    exit_code: int = attrs.field(metadata=_EXIT_CODE)
    problem: str | None
    """What broke first."""
    detail: str | None
    served_ms: int
    quiescent_instants: int
    """At which the invariants were asked."""
    invariants: tuple[InvariantDocument, ...]
    happened: dict[str, int]
    """What was asked, how it was answered, and which faults there were."""
    trace_tail: tuple[str, ...]
    hardware_performance_validated: bool = attrs.field(default=False, metadata=rules(const=False))


@attrs.frozen(kw_only=True)
class LogDocument:
    """The end of what a process said."""

    process: str
    lines: tuple[str, ...]


@attrs.frozen(kw_only=True)
class ProcessesDocument:
    """One run of real processes. What its seed decides is who is struck when and what callers ask; the rest is this
    machine's, so that there is no ``digest``, and ``wall_ms`` and all ``at_ms`` are of its clock."""

    schema: str = attrs.field(default=SCHEMA, metadata=rules(const=SCHEMA))
    kind: str = _kind("processes")
    scenario: str = _kind("processes")
    seed: int
    commit: str | None
    nodes: int
    rounds: int
    verdict: str = attrs.field(metadata=_VERDICT)
    exit_code: int = attrs.field(metadata=_EXIT_CODE)
    problem: str | None
    """What broke first."""
    detail: str | None
    digest: str | None = attrs.field(default=None, metadata=rules(const=None))
    wall_ms: int
    checks: tuple[CheckDocument, ...]
    happened: dict[str, int]
    mishaps: tuple[MishapDocument, ...]
    """What was done to the processes, in this order."""
    folder: str | None
    """Where stores and logs are left; ``None``: nowhere."""
    logs: tuple[LogDocument, ...]
    """Of those involved in what broke."""
    hardware_performance_validated: bool = attrs.field(default=False, metadata=rules(const=False))


DOCUMENTS: Final = (
    *(RunDocument, SwarmDocument, ReplayDocument, ShrinkDocument),
    *(ListDocument, ServeDocument, ProcessesDocument),
)


def simulation_schema() -> Schema:
    """The JSON Schema of every document that says ``lunanexa.simulation.v1``."""
    book = SchemaBook(prefix="#/$defs/")
    one_of = [book.of(kind) for kind in DOCUMENTS]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "title": "simulation",
        "oneOf": [*one_of],
        "$defs": book.schemas,
    }


def run_document(scenario: str, result: RunResult, commit: str | None) -> RunDocument:
    """One run as a document."""
    return RunDocument(
        scenario=scenario,
        seed=result.seed,
        commit=commit,
        verdict=result.verdict.name.lower(),
        exit_code=result.verdict.value,
        problem=result.problem,
        detail=result.detail or None,
        digest=result.digest,
        virtual_ms=result.virtual_ms,
        quiescent_instants=result.instants,
        scheduler_steps=result.steps,
        checks=tuple(
            CheckDocument(name=one.name, verdict=word_of_check(one.held), at_ms=one.at_ms) for one in result.promises
        ),
        invariants=invariants_of(result.asked, {(result.problem or "").partition(": ")[0]}),
        happened=dict(sorted(result.happened.items())),
        mishaps=tuple(MishapDocument(number=one.number, told=one.told) for one in result.drawn),
        trace_tail=() if result.verdict is Verdict.HELD else result.tail,
    )


def invariants_of(asked: Mapping[str, int], broken: set[str]) -> tuple[InvariantDocument, ...]:
    """Each invariant that was asked, by name."""
    return tuple(
        InvariantDocument(name=name, verdict=word_of_check(name not in broken), times_asked=count)
        for name, count in sorted(asked.items())
    )


def word_of_check(held: bool) -> str:
    """How a promise ended, as documents say it."""
    return HELD if held else BROKEN
