"""How it looks while it runs: a moving line on a terminal, a plain line now and then elsewhere. Both go to standard
error, so that standard output is the result alone; NO_COLOR (no-color.org) is heard by the library that draws."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lunanexa_simulation.real.running import Board as RealBoard
from lunanexa_simulation.trace import virtual_ms
from lunanexa_simulation.world import World

EVERY_S: Final = 5.0
"""Where nobody looks on, lines come so rarely."""
_EVERY_INSTANTS: Final = 64


class Board(Protocol):
    """Where a swarm shows how far it is."""

    def done(self, seeds: int, broken: int, happened: Mapping[str, int]) -> None: ...

    def say(self, line: str) -> None: ...


class _Bar:
    def __init__(self, progress: Progress, seeds: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=seeds)

    def done(self, seeds: int, broken: int, happened: Mapping[str, int]) -> None:
        self._progress.update(self._task, completed=seeds, description=_summary(broken, happened))

    def say(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Lines:
    def __init__(self, seeds: int, now_s: Callable[[], float]) -> None:
        self._seeds = seeds
        self._now_s = now_s
        self._next_s = now_s() + EVERY_S

    def done(self, seeds: int, broken: int, happened: Mapping[str, int]) -> None:
        if self._now_s() >= self._next_s:
            self._next_s = self._now_s() + EVERY_S
            self.say(f"{seeds} of {self._seeds} seeds, {_summary(broken, happened)}")

    def say(self, line: str) -> None:
        click.echo(line, err=True)


def _summary(broken: int, happened: Mapping[str, int]) -> str:
    mishaps = sum(count for name, count in happened.items() if name.startswith("mishap "))
    answers = sum(count for name, count in happened.items() if name.startswith("answer "))
    return f"{broken} broken, {mishaps} mishaps, {answers} answers"


@contextmanager
def swarm_board(seeds: int, now_s: Callable[[], float]) -> Iterator[Board]:
    """``now_s``: the time that passes for people."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(seeds, now_s)
        return
    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(progress, seeds)


class _Line:
    """A moving line, and what stays above it."""

    def __init__(self, name: str, progress: Progress) -> None:
        self._name = name
        self._progress = progress
        self._task = progress.add_task(name, total=None)

    def show(self, line: str) -> None:
        self._progress.update(self._task, description=f"{self._name}: {line}")

    def say(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Said:
    """What has been done, and nothing of what is; ``quiet``: not even that."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    def show(self, line: str) -> None:
        """Nobody looks on."""

    def say(self, line: str) -> None:
        if not self._quiet:
            click.echo(line, err=True)


@contextmanager
def real_time_board(name: str, *, quiet: bool) -> Iterator[RealBoard]:
    """Where what runs on real time shows how far it is."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield _Said(quiet=quiet)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Line(name, progress)


@contextmanager
def run_board(name: str, *, quiet: bool) -> Iterator[Callable[[World], None]]:
    """What a run's world is attended with, to show how far it is; nothing where nobody looks on."""
    if quiet or not sys.stderr.isatty():
        yield lambda _world: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=None)

        def attend(world: World) -> None:
            def look() -> None:
                if world.run.instants % _EVERY_INSTANTS == 0:
                    mishaps = sum(n for what, n in world.run.happened.items() if what.startswith("mishap "))
                    told = f"{name}: {virtual_ms() / 1_000:.1f} virtual s, {len(world.sight.shadow.open)} requests open"
                    progress.update(task, description=f"{told}, {mishaps} mishaps" if mishaps else told)

            world.run.checks.append(look)

        yield attend
