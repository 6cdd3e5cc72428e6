"""How ``lunanexa up`` looks: a moving line on a terminal, plain lines elsewhere, and the panel at the end.

Standard output gets the announcement and nothing else; all that happens on the way goes to standard error.
"""

import contextlib
import json
import shlex
import sys
from typing import Final

import click
import structlog
from rich.cells import cell_len
from rich.console import Console
from rich.panel import Panel
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from lunanexa_apps.cli.tools import printable, write_failure
from lunanexa_apps.up.screen import Announcement, Failure, Screen
from lunanexa_apps.up.supervisor import ChildEnded

_READY: Final = "LunaNexa is ready"
_PANEL_FRAME: Final = 20
"""What a panel has beside the words of its values."""


class TerminalScreen(Screen):
    """For a person who looks on."""

    def __init__(self, errors: Console, announce: "Announcer") -> None:
        self._console = errors
        self._announce = announce
        self._progress: Progress | None = None
        self._task = TaskID(0)

    def progress(self, text: str) -> None:
        if self._progress is None:
            # The text last: what does not fit is cut there, and text alone can be spared.
            columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._task = self._progress.add_task(text, total=None)
            self._progress.start()
        self._progress.update(self._task, description=printable(text))

    def note(self, text: str) -> None:
        self._console.print(Text(printable(text)))

    def child_ended(self, end: ChildEnded) -> None:
        pause = f"{end.pause_ms / 1000:.2g} s"
        self._console.print(Text(f"the {end.title} {end.reason}; starting it again in {pause}", style="yellow"))

    def serving(self, announcement: Announcement) -> None:
        self._announce.serving(announcement)

    def failed(self, failure: Failure) -> None:
        write_failure(failure.message, hint=failure.hint, details=failure.details)

    def settled(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class PlainScreen(Screen):
    """For a log: a line for each change, no cursor movement."""

    def __init__(self, announce: "Announcer") -> None:
        self._announce = announce
        self._last = ""

    def progress(self, text: str) -> None:
        if text != self._last:
            self._last = text
            self.note(text)

    def note(self, text: str) -> None:
        click.echo(f"lunanexa: {printable(text)}", err=True)

    def child_ended(self, end: ChildEnded) -> None:
        structlog.get_logger().warning("child_ended", name=end.name, status=end.status, restart_in_ms=end.pause_ms)

    def serving(self, announcement: Announcement) -> None:
        self._announce.serving(announcement)

    def failed(self, failure: Failure) -> None:
        write_failure(failure.message, hint=failure.hint, details=failure.details)

    def settled(self) -> None:
        self._last = ""


class ForgivingScreen(Screen):
    """Another screen that may go away: who closed the terminal still wants an orderly stop."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def progress(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._screen.progress(text)

    def note(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._screen.note(text)

    def child_ended(self, end: ChildEnded) -> None:
        with contextlib.suppress(OSError):
            self._screen.child_ended(end)

    def serving(self, announcement: Announcement) -> None:
        with contextlib.suppress(OSError):
            self._screen.serving(announcement)

    def failed(self, failure: Failure) -> None:
        with contextlib.suppress(OSError):
            self._screen.failed(failure)

    def settled(self) -> None:
        with contextlib.suppress(OSError):
            self._screen.settled()


class Announcer:
    """Writes the announcement on standard output, as a panel, as lines or as JSON."""

    def __init__(self, console: Console, *, as_json: bool) -> None:
        self._console = console
        self._json = as_json

    def serving(self, announcement: Announcement) -> None:
        if self._json:
            click.echo(json.dumps(announcement_document(announcement), indent=2))
        elif self._console.is_terminal:
            self._picture(announcement)
            # Outside the panel and never wrapped by us, so that it can be copied whole.
            self._console.print(Text("Try it:", style="bold"))
            self._console.print(Text(curl(announcement)), soft_wrap=True)
            self._console.print(Text("\nCtrl-C stops.", style="dim"))
        else:
            lines = [f"{name}: {value}" for name, value in rows(announcement)]
            click.echo("\n".join([*lines, "Try it:", curl(announcement)]))
        sys.stdout.flush()

    def _picture(self, announcement: Announcement) -> None:
        """A panel, or lines where it would break a key or an address, which could not be copied then."""
        told = rows(announcement)
        words = [word for _, value in told for word in value.split()]
        if max(map(cell_len, words)) + _PANEL_FRAME <= self._console.width:
            self._console.print(panel(announcement))
            return
        self._console.print(Text(_READY, style="bold green"))
        for name, value in told:
            self._console.print(Text.assemble((f"{name}: ", "bold"), value), soft_wrap=True)


def rows(announcement: Announcement) -> list[tuple[str, str]]:
    """What the panel says, in order."""
    return [
        ("Base URL", announcement.base_url),
        ("API key", announcement.api_key),
        ("  kept in", announcement.api_key_file),
        ("Models" if len(announcement.models) > 1 else "Model", ", ".join(announcement.models)),
        ("Engine", announcement.engine),
        ("Data", announcement.data_dir),
        ("Operator token", announcement.operator_token_file),
    ]


def panel(announcement: Announcement) -> Panel:
    """The picture that says that it works."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows(announcement):
        table.add_row(name, Text(value))
    return Panel(table, title=_READY, title_align="left", border_style="green", expand=False)


def curl(announcement: Announcement) -> str:
    """A call that works when it is pasted into a shell."""
    body = {
        "model": announcement.models[0],
        "stream": True,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    return " \\\n  ".join(
        (
            f"curl -sN {shlex.quote(announcement.base_url + '/chat/completions')}",
            f'-H "Authorization: Bearer {announcement.api_key}"',
            '-H "Content-Type: application/json"',
            f"-d {shlex.quote(json.dumps(body, separators=(',', ':')))}",
        )
    )


def announcement_document(announcement: Announcement) -> dict[str, str | list[str]]:
    """The announcement as JSON has it."""
    return {
        "base_url": announcement.base_url,
        "api_key": announcement.api_key,
        "api_key_file": announcement.api_key_file,
        "operator_token_file": announcement.operator_token_file,
        "model": announcement.models[0],
        "models": list(announcement.models),
        "engine": announcement.engine,
        "data_dir": announcement.data_dir,
    }
