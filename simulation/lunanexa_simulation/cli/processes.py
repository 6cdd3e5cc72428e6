"""``lunanexa-sim processes``: the fleet as real processes on this machine, and kill -9."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import click
from rich.table import Table
from rich.text import Text

from lunanexa_apps.cli.pages import page_console
from lunanexa_simulation.cli.live import real_time_board
from lunanexa_simulation.cli.told import happened_lines
from lunanexa_simulation.cli.tools import STDOUT, Tools, json_option, tell
from lunanexa_simulation.documents import HELD, LogDocument, MishapDocument, ProcessesDocument
from lunanexa_simulation.real.running import RealOrder, RealResult, run_real
from lunanexa_simulation.results import checks_of, ended

NODES_MAX: Final = 8


@click.command("processes", short_help="Strike real processes on loopback by kill -9.")
@click.option("--seed", type=int, default=1, show_default=True, help="Who is struck when, and what callers ask.")
@click.option(
    "--nodes", type=click.IntRange(1, NODES_MAX), default=4, show_default=True, help="Agents, each with an engine."
)
@click.option(
    "--rounds",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="R",
    help="Of kills: an engine, an agent, the controller, two at once, and an agent that is stopped beyond its lease.",
)
@click.option(
    "--keep-folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Run there, in a new or empty folder, and leave stores and logs. It holds secrets.",
)
@json_option
@click.pass_obj
def processes_command(
    tools: Tools, seed: int, nodes: int, rounds: int, keep_folder: Path | None, json_path: str | None
) -> int:
    """Run one controller, agents and engines as real processes, and kill them under traffic.

    It takes about half a minute for each round.
    """
    commit = tools.commit()
    with _folder(keep_folder) as place:
        order = RealOrder(seed=seed, nodes=nodes, rounds=rounds, folder=place.path, keep=place.keep)
        with real_time_board(f"processes seed {seed}", quiet=json_path == STDOUT) as board:
            result = tools.loop(lambda: run_real(order, tools.real(), board))
        if result is None:
            raise click.Abort
        place.keep = place.keep or result.problem is not None
        document = _document(order, result, commit, str(place.path) if place.keep else None)
    if json_path != STDOUT:
        _print_checks(document)
    tell(document, json_path, lambda: _lines(document))
    return document.exit_code


@attrs.define
class _Place:
    path: Path
    keep: bool


@contextmanager
def _folder(keep: Path | None) -> Iterator[_Place]:
    """For this user alone. A run that was interrupted leaves nothing, unless somebody asked for it."""
    if keep is not None:
        try:
            keep.mkdir(mode=0o700, parents=True, exist_ok=True)
            keep.chmod(0o700)
            empty = not any(keep.iterdir())
        except OSError as error:
            raise click.BadParameter(f"{keep}: {error.strerror}", param_hint="--keep-folder") from None
        if not empty:
            raise click.BadParameter(f"{keep} is there and not empty: name a new folder", param_hint="--keep-folder")
    path = Path(tempfile.mkdtemp(prefix="lunanexa-processes-")) if keep is None else keep
    place = _Place(path.resolve(), keep is not None)
    try:
        yield place
    finally:
        if not place.keep:
            shutil.rmtree(place.path, ignore_errors=True)


def _document(order: RealOrder, result: RealResult, commit: str | None, folder: str | None) -> ProcessesDocument:
    return ProcessesDocument(
        **ended(order.seed, commit, result),
        nodes=order.nodes,
        rounds=order.rounds,
        wall_ms=result.wall_ms,
        checks=checks_of(result.kept),
        mishaps=tuple(MishapDocument(number=one.number, told=str(one)) for one in result.strikes),
        folder=folder,
        logs=tuple(LogDocument(process=name, lines=lines) for name, lines in result.logs.items()),
    )


def _print_checks(document: ProcessesDocument) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("after", justify="right")
    table.add_column("verdict")
    table.add_column("check", overflow="fold")
    for check in document.checks:
        style = "green" if check.verdict == HELD else "bold red"
        table.add_row(f"{check.at_ms / 1_000:.1f} s", Text(check.verdict, style=style), Text(check.name))
    page_console().print(table)


def _lines(document: ProcessesDocument) -> list[str]:
    broken = sum(one.verdict != HELD for one in document.checks)
    lines = [
        "",
        f"processes seed {document.seed}: {document.verdict}, {len(document.checks)} checks, {broken} broken, "
        f"{len(document.mishaps)} strikes, {document.wall_ms / 1_000:.1f} s",
        *happened_lines(document.happened),
    ]
    if document.problem is not None:
        lines += [f"seed {document.seed}, commit {document.commit or 'unknown'}", f"broken: {document.problem}"]
        lines += (document.detail or "").splitlines()
        for log in document.logs:
            lines += [f"the end of the log of {log.process}:", *(f"  {line}" for line in log.lines)]
        lines.append(
            f"again: lunanexa-sim processes --seed {document.seed} --nodes {document.nodes} --rounds {document.rounds}"
        )
    if document.folder is not None:
        lines.append(f"stores and logs, with secrets: {document.folder}")
    return lines
