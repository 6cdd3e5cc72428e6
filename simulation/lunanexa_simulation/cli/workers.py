"""Seeds in processes side by side. A worker is asked for one seed a line, and answers with one document a line."""

import gc
import sys
from collections.abc import Callable, Iterator
from functools import partial
from subprocess import PIPE
from typing import Final

import attrs
import click
import trio

from lunanexa_apps.codec import decode, encode
from lunanexa_simulation.cli.tools import PROGRAM
from lunanexa_simulation.documents import RunDocument
from lunanexa_simulation.results import run_document
from lunanexa_simulation.run import Manner, RunResult
from lunanexa_simulation.scenarios import SCENARIOS
from lunanexa_simulation.verdicts import Verdict

SEED_S_MAX: Final = 300
MINUTE_S_MAX: Final = 60
"""No seed takes so long, nor so much longer for a virtual minute more: a run in which no time passes any more is ended,
and told as a crash."""
GC_THRESHOLD: Final = 50_000
_BYTES: Final = 65_536


@click.command("worker", hidden=True)
@click.argument("scenario", type=click.Choice(sorted(SCENARIOS)))
@click.argument("faults_ms", type=int, required=False)
def worker_command(scenario: str, faults_ms: int | None) -> None:
    """Run the seeds that come on standard input, one a line."""
    manner = Manner(faults_ms=faults_ms)
    # What was imported stays; looking through it again and again takes a tenth of the time.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    for line in sys.stdin:
        document = run_document(scenario, SCENARIOS[scenario].run(int(line), manner), None)
        if document.exit_code == 0:  # Of what held nobody reads the promises.
            document = attrs.evolve(document, checks=(), mishaps=())
        click.echo(encode(document))


@attrs.frozen(kw_only=True)
class Asked:
    """What is to be run of each seed."""

    scenario: str
    faults_ms: int | None

    @property
    def seed_s_max(self) -> float:
        return SEED_S_MAX + MINUTE_S_MAX * (self.faults_ms or 0) / 60_000

    @property
    def command(self) -> list[str]:
        lasting = [] if self.faults_ms is None else [str(self.faults_ms)]
        return [*PROGRAM, "worker", self.scenario, *lasting]


async def run_seeds(asked: Asked, seeds: Iterator[int], jobs: int, ended: Callable[[RunDocument], None]) -> None:
    """Asks ``jobs`` workers until ``seeds`` has no more. It is asked for the next one when a worker is free."""
    async with trio.open_nursery() as nursery:
        for _ in range(jobs):
            nursery.start_soon(_work, asked, seeds, ended)


async def _work(asked: Asked, seeds: Iterator[int], ended: Callable[[RunDocument], None]) -> None:
    process: trio.Process | None = None
    async with trio.open_nursery() as nursery:
        for seed in seeds:
            if process is None:
                command = asked.command
                start = partial(trio.run_process, command, stdin=PIPE, stdout=PIPE, check=False)
                process = await nursery.start(start)
            document = await _ask(process, seed, asked.seed_s_max)
            if document is None:
                process.kill()
                process = None
                document = _crash(asked, seed)
            ended(document)
        nursery.cancel_scope.cancel("no more seeds")


async def _ask(process: trio.Process, seed: int, within_s: float) -> RunDocument | None:
    """Nothing where the worker ended, or did not answer in time."""
    assert process.stdin is not None
    assert process.stdout is not None
    answer = b""
    with trio.move_on_after(within_s):
        try:
            await process.stdin.send_all(f"{seed}\n".encode())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return None
        while not answer.endswith(b"\n"):
            piece = await process.stdout.receive_some(_BYTES)
            if not piece:
                return None
            answer += piece
        return decode(RunDocument, answer)
    return None


def _crash(asked: Asked, seed: int) -> RunDocument:
    result = RunResult(
        seed=seed,
        verdict=Verdict.CRASHED,
        problem=f"its process ended, or told nothing within {asked.seed_s_max:.0f} seconds",
        detail="",
        digest="",
        virtual_ms=0,
        instants=0,
        steps=0,
        promises=(),
        asked={},
        tail=(),
        happened={},
        drawn=(),
        faults_ms=asked.faults_ms,
    )
    return run_document(asked.scenario, result, None)
