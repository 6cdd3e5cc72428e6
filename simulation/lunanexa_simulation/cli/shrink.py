"""``lunanexa-sim shrink``: which of a seed's mishaps a failure needs."""

from collections.abc import Sequence

import click

from lunanexa_simulation.cli.told import failure_lines
from lunanexa_simulation.cli.tools import (
    NothingToDo,
    Tools,
    faults_ms_of,
    json_option,
    minutes_option,
    scenario_option,
    seed_option,
    tell,
)
from lunanexa_simulation.documents import MishapDocument, RunDocument, ShrinkDocument
from lunanexa_simulation.results import run_document
from lunanexa_simulation.run import Manner, RunResult
from lunanexa_simulation.scenarios import SCENARIOS
from lunanexa_simulation.shrinking import smallest
from lunanexa_simulation.verdicts import Verdict


@click.command("shrink", short_help="Find the few mishaps that a failure needs.")
@scenario_option
@seed_option
@minutes_option
@json_option
@click.pass_obj
def shrink_command(tools: Tools, scenario: str, seed: int, minutes: float | None, json_path: str | None) -> int:
    """Drop mishaps of a seed that fails, as long as it fails in the same way, and tell those that are left."""
    runs, faults_ms = 0, faults_ms_of(scenario, minutes)

    def run(numbers: Sequence[int] | None) -> RunResult:
        nonlocal runs
        runs += 1
        only = None if numbers is None else frozenset(numbers)
        result = SCENARIOS[scenario].run(seed, Manner(only=only, faults_ms=faults_ms))
        count = "all" if numbers is None else str(len(numbers))
        click.echo(f"run {runs}, with {count} mishaps: {result.problem or 'held'}", err=True)
        return result

    first = run(None)
    if first.verdict is Verdict.HELD:
        raise NothingToDo(f"seed {seed} of {scenario} does not fail")
    if not first.drawn:
        raise NothingToDo(f"{scenario} draws no mishaps that could be left out")
    numbers = smallest([mishap.number for mishap in first.drawn], lambda tried: _same(first, run(tried)))
    last = run(numbers)
    kept = tuple(
        MishapDocument(number=one.number, told=one.told) for one in first.drawn if one.number in frozenset(numbers)
    )
    document = ShrinkDocument(
        mishaps_before=len(first.drawn), runs=runs, kept=kept, run=run_document(scenario, last, tools.commit())
    )
    tell(document, json_path, lambda: _lines(document))
    return document.run.exit_code


def _same(first: RunResult, other: RunResult) -> bool:
    """The same failure: what was broken has the same name, whatever the numbers in what was told of it."""
    return (first.verdict, _name(first)) == (other.verdict, _name(other))


def _name(result: RunResult) -> str:
    return (result.problem or "").partition(": ")[0]


def _lines(document: ShrinkDocument) -> list[str]:
    run: RunDocument = document.run
    return [
        *failure_lines(run, only=[mishap.number for mishap in document.kept]),
        f"{len(document.kept)} of {document.mishaps_before} mishaps are left after {document.runs} runs:",
        *(f"  {mishap.number:>3}  {mishap.told}" for mishap in document.kept),
    ]
