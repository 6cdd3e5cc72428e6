"""What the commands of ``lunanexa-sim`` share: options, the loop, and where documents go."""

import difflib
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import attrs
import click
import trio

from lunanexa_apps.codec import encode
from lunanexa_simulation.real.tools import RealTools
from lunanexa_simulation.scenarios import SCENARIOS
from lunanexa_simulation.serving.tools import ServeTools

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

STDOUT: Final = "-"
MINUTES: Final = (0.1, 60)
INTERRUPTED: Final = 130
"""The exit code of what was ended by Ctrl-C, and found nothing until then."""
PROGRAM: Final = (sys.executable, "-m", "lunanexa_simulation.main")
SWARM: Final = "many-faults"
"""The scenario that draws everything from its seed."""
_HERE: Final = Path(__file__).resolve()


class Loop(Protocol):
    """Starts a loop on real time; only the composition root may."""

    def __call__(self, function: Callable[[], Awaitable[T]], /, *, clock: trio.abc.Clock | None = None) -> T: ...


@attrs.frozen
class Tools:
    """What commands get from the composition root."""

    loop: Loop
    real: Callable[[], RealTools]
    """Adapters on this machine, which few commands need."""
    serve: Callable[[], ServeTools]
    """A real listener and the real time, which one command needs."""

    def commit(self) -> str | None:
        """The commit of the checkout that this file stands in, where it stands in one."""
        return self.loop(_commit)


async def _commit() -> str | None:
    git = partial(trio.run_process, capture_stdout=True, capture_stderr=True, check=False, cwd=_HERE.parent)
    try:
        ours = await git(["git", "ls-files", "--error-unmatch", _HERE.name])
        head = await git(["git", "rev-parse", "HEAD"])
    except OSError:
        return None
    if ours.returncode or head.returncode:
        return None
    return str(head.stdout.decode().strip())


class WritablePath(click.ParamType[str]):
    """Asked before the run, which takes seconds and ends with a result that should not be lost."""

    name = "path"

    def __init__(self, *, stdout: bool) -> None:
        self._stdout = stdout

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if self._stdout and value == STDOUT:
            return value
        folder = os.path.dirname(os.path.abspath(value))
        if not value or os.path.isdir(value) or not os.access(folder, os.W_OK):
            self.fail(f"{value!r} can't be written", param, ctx)
        return value


class ScenarioName(click.ParamType[str]):
    """One that there is; of one that is misspelt the nearest is told."""

    name = "name"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in SCENARIOS:
            near = difflib.get_close_matches(value, SCENARIOS, n=1)
            meant = f": did you mean {near[0]}?" if near else ";"
            self.fail(f"there is no scenario {value!r}{meant} lunanexa-sim list names them", param, ctx)
        return value


class NothingToDo(click.ClickException):
    """What was asked is well formed, and there is nothing of the kind."""

    exit_code = 64


class Numbers(click.ParamType[frozenset[int]]):
    """Numbers of mishaps, with commas between them."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[int]:
        try:
            return frozenset(int(part) for part in str(value).split(",") if part)
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 3,17", param, ctx)


def seed_option(function: F) -> F:
    """What decides the whole run."""
    return click.option("--seed", type=int, default=1, show_default=True, help="What decides the whole run.")(function)


def json_option(function: F) -> F:
    """Where the document goes, beside what people read."""
    told = "Write the document there; - is standard output, and then nothing else is."
    return click.option("--json", "json_path", type=WritablePath(stdout=True), metavar="PATH", help=told)(function)


def only_option(function: F) -> F:
    """What a shrunk list is run again with."""
    told = "Of the mishaps that the seed has in store, let only these happen."
    return click.option("--only", type=Numbers(), metavar="N,N", help=told)(function)


def minutes_option(function: F) -> F:
    """Mishaps for longer, or shorter, than a seed draws them."""
    told = "Let mishaps befall it for so many virtual minutes, and not as the seed draws it."
    kind = click.FloatRange(*MINUTES)
    return click.option("--minutes", type=kind, metavar="M", help=told)(function)


def faults_ms_of(scenario: str, minutes: float | None) -> int | None:
    """The same in a run's own measure. Ends the command where the scenario draws none."""
    if minutes is None:
        return None
    if not SCENARIOS[scenario].draws:
        raise NothingToDo(f"--minutes: {scenario} draws no mishaps that could last; leave it out")
    return round(minutes * 60_000)


def scenario_option(function: F) -> F:
    """For commands that were made for the scenario that draws its mishaps."""
    return click.option("--scenario", type=ScenarioName(), default=SWARM, show_default=True, metavar="NAME")(function)


def tell(document: object, json_path: str | None, lines: Callable[[], list[str]]) -> None:
    """The document where it was asked for, and the lines for people."""
    text = encode(document).decode() + "\n"
    if json_path == STDOUT:
        click.echo(text, nl=False)
        return
    if json_path is not None:
        Path(json_path).write_text(text, encoding="utf-8")
    for line in lines():
        click.echo(line)
