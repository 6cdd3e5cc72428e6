"""What commands get from the composition root, and how they end: exit status, one message, one next step."""

import errno
import io
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Final, NoReturn, Protocol, TypeVar

import attrs
import click

from lunanexa_ports.children import Children
from lunanexa_ports.clock import Clock
from lunanexa_ports.http_client import HttpClient
from lunanexa_ports.ids import IdSource
from lunanexa_ports.journal import JournalReader
from lunanexa_ports.journal_upkeep import JournalUpkeep
from lunanexa_ports.private_files import PrivateFiles
from lunanexa_ports.signing import Signer, Verifier

T = TypeVar("T")

EXIT_UNAVAILABLE = 69
"""sysexits' EX_UNAVAILABLE: nothing answers."""
EXIT_CONFIG = 78
"""sysexits' EX_CONFIG: the settings can't be used."""
EXIT_HELD = 75
"""sysexits' EX_TEMPFAIL: somebody else runs it now."""
_EXIT_IO: Final = 74
"""sysexits' EX_IOERR."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Run(Protocol):
    """Starts the loop; only the composition root may."""

    def __call__(self, function: Callable[[], Awaitable[T]], /) -> T: ...


@attrs.frozen(kw_only=True)
class BackupTools:
    """What making and restoring backups needs of the world."""

    clock: Clock
    verifier: Verifier
    read_signers: Callable[[str], Sequence[Signer]]
    """The signing keys in the folder that is named, oldest first."""
    read_file: Callable[[str], AbstractAsyncContextManager[JournalReader]]
    """The store in that file, which a controller may have open."""
    read_database: Callable[[str], AbstractAsyncContextManager[JournalReader]]
    """The store at that URL."""
    fill_file: Callable[[str], AbstractAsyncContextManager[JournalUpkeep]]
    fill_database: Callable[[str], AbstractAsyncContextManager[JournalUpkeep]]


@attrs.frozen(kw_only=True)
class Tools:
    """Makers of adapters, called only by the command that needs them, so that the others start fast."""

    run: Run
    make_http: Callable[[], HttpClient]
    make_ids: Callable[[], IdSource]
    make_children: Callable[[], AbstractContextManager[Children]]
    make_files: Callable[[str], PrivateFiles]
    """For the folder that is named."""
    open_journal: Callable[[str], AbstractAsyncContextManager[JournalReader]]
    """The store in the file that is named, for reading; nobody may be writing it."""
    make_backup_tools: Callable[[], BackupTools]


def fail(message: str, *, hint: str | None = None, details: tuple[str, ...] = (), exit_code: int = 1) -> NoReturn:
    """Ends the program with a message that a person can act on."""
    write_failure(message, hint=hint, details=details)
    raise SystemExit(exit_code)


def demand_file(path: str, what: str, *, hint: str) -> None:
    """Ends the program where there is no such file, or this user may not know."""
    try:
        if Path(path).is_file():
            return
    except OSError as error:
        problem = f"{path} can't be looked at ({error.strerror})"
        fail(problem, hint="run this as the user of the controller, or name another place", exit_code=EXIT_UNAVAILABLE)
    fail(f"there is no {what} at {path}", hint=hint, exit_code=EXIT_UNAVAILABLE)


def confirm(question: str) -> None:
    """Ends the program, and nothing was changed, unless a person says yes."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)  # The question's line has no end.
        fail("nobody answers, and nothing was changed", hint="to go on without the question, repeat it with --yes")
    if not agreed:
        write_note("nothing was changed")
        raise click.Abort


def forgive_output() -> None:
    """A terminal that knows few characters gets those, and no traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def fail_unwritten(error: OSError) -> NoReturn:
    """Ends the program where there is no room for its output; raises what else ``error`` is."""
    if error.errno not in _FULL:
        raise error
    sys.stdout = io.StringIO()  # What is held back would fail again at the end.
    told = f"the output can't be written ({error.strerror})"
    fail(told, hint="free space where it goes, and repeat the command", exit_code=_EXIT_IO)


def write_failure(message: str, *, hint: str | None = None, details: tuple[str, ...] = ()) -> None:
    """The message and the next step, on standard error."""
    click.echo(click.style("error: ", fg="red", bold=True) + message, err=True, color=wants_color())
    for line in details:
        click.echo("  | " + printable(line), err=True)
    if hint is not None:
        click.echo(click.style("next:  ", bold=True) + hint, err=True, color=wants_color())


def write_note(text: str) -> None:
    """What a person should know of what was done, on standard error."""
    click.echo(click.style("note:  ", bold=True) + text, err=True, color=wants_color())


def wants_color() -> bool | None:
    """``None`` leaves it to the stream; NO_COLOR (no-color.org) forbids it."""
    return False if os.environ.get("NO_COLOR") else None


def printable(text: str) -> str:
    """``text`` without control characters: what a model or a log says must not steer the terminal."""
    return "".join(c for c in text if c in "\n\t" or (c.isprintable() or ord(c) > 0x9F))
