"""What ``lunanexa-sim`` says of runs, as documents: schema ``lunanexa.simulation.v1``.

What was found is about protocol and recovery. It says nothing of accelerator speed, and each document says so.
"""

from typing import Any, Final

import attrs

from lunanexa_core.contract.schema import Schema, SchemaBook, rules
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
class Document:
    """What each of them says beside its ``kind``."""

    schema: str = attrs.field(default=SCHEMA, metadata=rules(const=SCHEMA))
    hardware_performance_validated: bool = attrs.field(default=False, metadata=rules(const=False))


@attrs.frozen(kw_only=True)
class EndedDocument(Document):
    """What each says of something that one seed decides, or begins."""

    seed: int
    commit: str | None
    verdict: str = attrs.field(metadata=_VERDICT)
    exit_code: int = attrs.field(metadata=_EXIT_CODE)
    problem: str | None
    """What broke first."""
    detail: str | None
    happened: dict[str, int]
    """How often what happened."""


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
class RunDocument(EndedDocument):
    """One run. ``digest`` is its identity: two runs are the same run exactly when their digests are equal."""

    kind: str = _kind("run")
    scenario: str
    faults_ms: int | None = None
    """For so long mishaps were drawn; ``None``: for as long as the seed has it."""
    digest: str
    virtual_ms: int
    quiescent_instants: int
    scheduler_steps: int
    checks: tuple[CheckDocument, ...]
    invariants: tuple[InvariantDocument, ...]
    mishaps: tuple[MishapDocument, ...]
    trace_tail: tuple[str, ...]
    deterministic: bool | None = None
    """Whether two processes agreed; ``None``: nobody asked."""


@attrs.frozen(kw_only=True)
class SwarmDocument(Document):
    """Many seeds. ``digest`` is that of the digests of all its runs, in the order of their seeds."""

    kind: str = _kind("swarm")
    scenario: str
    first_seed: int
    seeds: int
    """How many were to be run."""
    seeds_run: int
    faults_ms: int | None = None
    """As each of its runs had it."""
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


@attrs.frozen(kw_only=True)
class StateDocument:
    """How a world stands at one instant: lines for people, by what they are about."""

    about: str
    lines: tuple[str, ...]


@attrs.frozen(kw_only=True)
class ReplayDocument(Document):
    """A run that was stopped at an instant, and the world as it stood then."""

    kind: str = _kind("replay")
    until_ms: int
    run: RunDocument
    state: tuple[StateDocument, ...]
    """Empty where the run was over before."""


@attrs.frozen(kw_only=True)
class ShrinkDocument(Document):
    """The smallest list of mishaps that was found with which a run still fails as it did with all."""

    kind: str = _kind("shrink")
    mishaps_before: int
    runs: int
    """How many it took."""
    kept: tuple[MishapDocument, ...]
    run: RunDocument
    """The run with those alone."""


@attrs.frozen(kw_only=True)
class ScenarioDocument:
    """One scenario."""

    name: str
    summary: str
    waits_for: str | None = None
    """The feature that it waits for; ``None``: it is there."""


@attrs.frozen(kw_only=True)
class ListDocument(Document):
    """The scenarios, and those that are planned."""

    kind: str = _kind("list")
    scenarios: tuple[ScenarioDocument, ...]


@attrs.frozen(kw_only=True)
class ServeDocument(EndedDocument):
    """One session on real time. What the seed decides is less than in a run, so that there is no ``digest``."""

    kind: str = _kind("serve")
    nodes: int
    controllers: int
    served_ms: int
    quiescent_instants: int
    """At which the invariants were asked."""
    invariants: tuple[InvariantDocument, ...]
    trace_tail: tuple[str, ...]


@attrs.frozen(kw_only=True)
class LogDocument:
    """The end of what a process said."""

    process: str
    lines: tuple[str, ...]


@attrs.frozen(kw_only=True)
class ProcessesDocument(EndedDocument):
    """One run of real processes. What its seed decides is who is struck when and what callers ask; the rest is this
    machine's, so that there is no ``digest``, and ``wall_ms`` and all ``at_ms`` are of its clock."""

    kind: str = _kind("processes")
    scenario: str = _kind("processes")
    nodes: int
    rounds: int
    digest: str | None = attrs.field(default=None, metadata=rules(const=None))
    wall_ms: int
    checks: tuple[CheckDocument, ...]
    mishaps: tuple[MishapDocument, ...]
    """What was done to the processes, in this order."""
    folder: str | None
    """Where stores and logs are left; ``None``: nowhere."""
    logs: tuple[LogDocument, ...]
    """Of those involved in what broke."""


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
