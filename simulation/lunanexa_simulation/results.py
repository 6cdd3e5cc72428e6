"""What came of a run, as its document says it."""

from collections.abc import Iterable, Mapping
from typing import Protocol, TypedDict

from lunanexa_simulation.documents import (
    BROKEN,
    HELD,
    CheckDocument,
    InvariantDocument,
    MishapDocument,
    RunDocument,
)
from lunanexa_simulation.run import Kept, RunResult
from lunanexa_simulation.verdicts import Verdict


class Result(Protocol):
    """What every kind of run leaves."""

    @property
    def verdict(self) -> Verdict: ...

    @property
    def problem(self) -> str | None: ...

    @property
    def detail(self) -> str: ...

    @property
    def happened(self) -> Mapping[str, int]: ...


class Ended(TypedDict):
    """The members of an :class:`EndedDocument`."""

    seed: int
    commit: str | None
    verdict: str
    exit_code: int
    problem: str | None
    detail: str | None
    happened: dict[str, int]


def ended(seed: int, commit: str | None, result: Result) -> Ended:
    """How it ended, for the document of any kind."""
    return Ended(
        seed=seed,
        commit=commit,
        verdict=result.verdict.name.lower(),
        exit_code=result.verdict.value,
        problem=result.problem,
        detail=result.detail or None,
        happened=dict(sorted(result.happened.items())),
    )


def run_document(scenario: str, result: RunResult, commit: str | None) -> RunDocument:
    """One run as a document."""
    return RunDocument(
        **ended(result.seed, commit, result),
        scenario=scenario,
        faults_ms=result.faults_ms,
        digest=result.digest,
        virtual_ms=result.virtual_ms,
        quiescent_instants=result.instants,
        scheduler_steps=result.steps,
        checks=checks_of(result.promises),
        invariants=invariants_of(result.asked, {(result.problem or "").partition(": ")[0]}),
        mishaps=tuple(MishapDocument(number=one.number, told=one.told) for one in result.drawn),
        trace_tail=() if result.verdict is Verdict.HELD else result.tail,
    )


def checks_of(promises: Iterable[Kept]) -> tuple[CheckDocument, ...]:
    """Each promise, in the order in which they ended."""
    return tuple(CheckDocument(name=one.name, verdict=_word(one.held), at_ms=one.at_ms) for one in promises)


def invariants_of(asked: Mapping[str, int], broken: set[str]) -> tuple[InvariantDocument, ...]:
    """Each invariant that was asked, by name."""
    return tuple(
        InvariantDocument(name=name, verdict=_word(name not in broken), times_asked=count)
        for name, count in sorted(asked.items())
    )


def _word(held: bool) -> str:
    return HELD if held else BROKEN
