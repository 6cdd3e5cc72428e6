"""``lunanexa-sim swarm``: many seeds, and what they found."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from typing import Final

import attrs
import click
import trio

from lunanexa_simulation.cli.live import Board, swarm_board
from lunanexa_simulation.cli.told import failure_lines, swarm_lines
from lunanexa_simulation.cli.tools import (
    INTERRUPTED,
    Tools,
    faults_ms_of,
    json_option,
    minutes_option,
    scenario_option,
    tell,
)
from lunanexa_simulation.cli.workers import Asked, run_seeds
from lunanexa_simulation.documents import RunDocument, SwarmDocument
from lunanexa_simulation.results import invariants_of
from lunanexa_simulation.verdicts import Verdict

FAILURES_MAX: Final = 5
"""After so many the swarm ends: there is enough to mend."""
_RANK: Final = (Verdict.SAFETY_BROKEN, Verdict.CRASHED, Verdict.LIVENESS_BROKEN)


@attrs.define
class _Swarm:
    """What was heard of the seeds so far."""

    commit: str | None
    board: Board
    ended: dict[int, RunDocument] = attrs.Factory(dict)
    happened: Counter[str] = attrs.Factory(Counter)
    interrupted: bool = False

    @property
    def failures(self) -> list[RunDocument]:
        return [run for _, run in sorted(self.ended.items()) if run.exit_code]

    def hear(self, run: RunDocument) -> None:
        run = self.ended[run.seed] = attrs.evolve(run, commit=self.commit)
        self.happened.update(run.happened)
        if run.exit_code:
            for line in failure_lines(run):
                self.board.say(line)
        self.board.done(len(self.ended), len(self.failures), self.happened)


@click.command("swarm", short_help="Run many seeds side by side in processes.")
@scenario_option
@click.option("--seeds", type=click.IntRange(min=1), default=100, show_default=True, help="How many.")
@click.option("--first", type=int, default=1, show_default=True, help="The first of them.")
@minutes_option
@click.option("--within", type=click.FloatRange(min=0), metavar="M", help="Begin no seed after so many real minutes.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="J", help="Processes side by side. [default: processors]")
@json_option
@click.pass_obj
def swarm_command(
    tools: Tools,
    scenario: str,
    seeds: int,
    first: int,
    minutes: float | None,
    within: float | None,
    jobs: int | None,
    json_path: str | None,
) -> int:
    """Run many seeds side by side: worlds, callers and mishaps as each seed has them."""
    asked = Asked(scenario=scenario, faults_ms=faults_ms_of(scenario, minutes))
    jobs = jobs or len(os.sched_getaffinity(0))
    commit = tools.commit()

    async def swarm() -> _Swarm:
        with swarm_board(seeds, trio.current_time) as board:
            found = _Swarm(commit, board)
            try:
                await run_seeds(asked, _seeds(found, first, seeds, within), min(jobs, seeds), found.hear)
            except* KeyboardInterrupt:
                found.interrupted = True
                board.say("interrupted; what was found until then:")
            return found

    found = tools.loop(swarm)
    document = _document(asked, first, seeds, found)
    tell(document, json_path, lambda: swarm_lines(document))
    return document.exit_code or (INTERRUPTED if found.interrupted else 0)


def _seeds(found: _Swarm, first: int, seeds: int, within: float | None) -> Iterator[int]:
    until_s = None if within is None else trio.current_time() + within * 60
    for seed in range(first, first + seeds):
        late = until_s is not None and trio.current_time() >= until_s
        if late or len(found.failures) >= FAILURES_MAX:
            return
        yield seed


def _document(asked_for: Asked, first: int, seeds: int, found: _Swarm) -> SwarmDocument:
    runs = [run for _, run in sorted(found.ended.items())]
    asked: Counter[str] = Counter()
    for run in runs:
        asked.update({one.name: one.times_asked for one in run.invariants})
    verdicts = Counter(run.verdict for run in runs)
    worst = next((verdict for verdict in _RANK if verdict.name.lower() in verdicts), Verdict.HELD)
    broken = {(run.problem or "").partition(": ")[0] for run in runs}
    return SwarmDocument(
        scenario=asked_for.scenario,
        faults_ms=asked_for.faults_ms,
        first_seed=first,
        seeds=seeds,
        seeds_run=len(runs),
        commit=found.commit,
        verdict=worst.name.lower(),
        exit_code=worst.value,
        digest=hashlib.sha256(" ".join(run.digest for run in runs).encode()).hexdigest(),
        virtual_ms=sum(run.virtual_ms for run in runs),
        quiescent_instants=sum(run.quiescent_instants for run in runs),
        verdicts=dict(sorted(verdicts.items())),
        invariants=invariants_of(asked, broken),
        happened=dict(sorted(found.happened.items())),
        failures=tuple(found.failures),
    )
