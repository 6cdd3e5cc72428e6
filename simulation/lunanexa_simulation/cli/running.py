"""``lunanexa-sim run``: one scenario from one seed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import click
import trio

from lunanexa_apps.codec import decode
from lunanexa_simulation.cli.live import run_board
from lunanexa_simulation.cli.told import run_lines
from lunanexa_simulation.cli.tools import (
    PROGRAM,
    STDOUT,
    NothingToDo,
    ScenarioName,
    Tools,
    WritablePath,
    faults_ms_of,
    json_option,
    minutes_option,
    only_option,
    seed_option,
    tell,
)
from lunanexa_simulation.documents import RunDocument
from lunanexa_simulation.results import run_document
from lunanexa_simulation.run import Manner
from lunanexa_simulation.scenarios import SCENARIOS
from lunanexa_simulation.timeline import Timeline
from lunanexa_simulation.timeline_page import timeline_page
from lunanexa_simulation.verdicts import Verdict
from lunanexa_simulation.world import World

HASH_SEEDS: Final = ("1", "2")


@click.command("run")
@click.argument("scenario", type=ScenarioName(), metavar="NAME")
@seed_option
@json_option
@minutes_option
@only_option
@click.option(
    "--report",
    "report_path",
    type=WritablePath(stdout=False),
    metavar="FILE.html",
    help="Write the run's timeline there, one page that needs nothing else.",
)
@click.option("--twice", is_flag=True, help="In two processes with different PYTHONHASHSEED, which must agree.")
@click.pass_obj
def run_command(
    tools: Tools,
    scenario: str,
    seed: int,
    json_path: str | None,
    minutes: float | None,
    only: frozenset[int] | None,
    report_path: str | None,
    twice: bool,
) -> int:
    """Run one scenario, and tell how it ended."""
    if twice and (report_path or only):
        raise click.UsageError("--twice runs in processes of its own: leave --report and --only out")
    faults_ms = faults_ms_of(scenario, minutes)
    commit = tools.commit()
    if twice:
        document = tools.loop(lambda: _run_twice(scenario, seed, minutes))
        document = attrs.evolve(document, commit=commit)
    else:
        document = _run_here(scenario, seed, commit, Manner(only=only, faults_ms=faults_ms), report_path, json_path)
    tell(document, json_path, lambda: run_lines(document, only=only))
    if report_path is not None:
        click.echo(f"its timeline: {report_path}", err=True)
    return document.exit_code


def _run_here(
    scenario: str,
    seed: int,
    commit: str | None,
    manner: Manner,
    report_path: str | None,
    json_path: str | None,
) -> RunDocument:
    timeline, only = None if report_path is None else Timeline(), manner.only
    with run_board(f"{scenario} seed {seed}", quiet=json_path == STDOUT) as board:
        attend = _both(board, None if timeline is None else timeline.attend)
        result = SCENARIOS[scenario].run(seed, attrs.evolve(manner, attend=attend))
    if only is not None and not only <= {mishap.number for mishap in result.drawn}:
        told = f"the mishaps 1 to {len(result.drawn)}" if result.drawn else "no mishaps"
        raise NothingToDo(f"--only: seed {seed} of {scenario} has {told} in store")
    document = run_document(scenario, result, commit)
    if timeline is not None and report_path is not None:
        timeline.close(result.problem)
        Path(report_path).write_text(timeline_page(timeline, document), encoding="utf-8")
    return document


def _both(first: Callable[[World], None], second: Callable[[World], None] | None) -> Callable[[World], None]:
    def attend(world: World) -> None:
        first(world)
        if second is not None:
            second(world)

    return attend


async def _run_twice(scenario: str, seed: int, minutes: float | None) -> RunDocument:
    """The same run in two processes whose hashes of strings differ. One process can't tell: the order of a set
    is the same in it each time."""
    documents: dict[str, RunDocument] = {}

    async def one(hash_seed: str) -> None:
        lasting = [] if minutes is None else ["--minutes", str(minutes)]
        command = [*PROGRAM, "run", scenario, "--seed", str(seed), *lasting, "--json", STDOUT]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ended = await trio.run_process(command, env=environment, capture_stdout=True, check=False, process_group=0)
        if ended.stdout:
            documents[hash_seed] = decode(RunDocument, ended.stdout)

    async with trio.open_nursery() as nursery:
        for hash_seed in HASH_SEEDS:
            nursery.start_soon(one, hash_seed)
    if len(documents) < len(HASH_SEEDS):
        # What it says is on standard error already.
        raise SystemExit(Verdict.CRASHED.value)
    first, second = (documents[hash_seed] for hash_seed in HASH_SEEDS)
    if first.digest == second.digest:
        return attrs.evolve(first, deterministic=True)
    return attrs.evolve(
        first,
        deterministic=False,
        verdict=Verdict.NOT_DETERMINISTIC.name.lower(),
        exit_code=Verdict.NOT_DETERMINISTIC.value,
        problem=f"digests of two processes differ: {first.digest} and {second.digest}",
    )
