"""``lunanexa journal``: verifies, follows, shows, replays and exports journal and ledger, of a running controller
through its operator plane, of a stopped one from its data directory."""

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any, Final, NoReturn

import attrs
import click
import trio

from lunanexa_apps.cli.asking import print_json
from lunanexa_apps.cli.journal_file import export_rows, json_line, new_export, verify_file
from lunanexa_apps.cli.journal_page import row_line, row_page, verifier_page
from lunanexa_apps.cli.journal_replay import replay_source
from lunanexa_apps.cli.journal_source import Source, TooEarly, use_source
from lunanexa_apps.cli.journal_verify import Verifier, verify_source
from lunanexa_apps.cli.options import JSON, config_option, output_option, setting_options
from lunanexa_apps.cli.tools import Tools, fail, write_failure, write_note
from lunanexa_apps.journal_rows import row_document
from lunanexa_core.ids import is_identifier
from lunanexa_core.journal import Chain, Row
from lunanexa_core.journal_query import PAGE_ROWS_MAX, PageQuery

_FOLLOW_S: Final = 1.0
_RESTORE: Final = "keep a copy of the data directory as it is, then restore a backup"
_EXPORT: Final = "take another copy of the file, or make it anew: lunanexa journal export FILE"
_row_number: Final = click.IntRange(1, 10**15 - 1)


def _common(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every subcommand."""
    metavar = {"data_dir": "DIR", "url": "URL", "token_file": "FILE"}
    options = setting_options("data_dir", "url", "token_file", metavar=metavar)
    offline = click.option("--offline", is_flag=True, help="Read the data directory of a stopped controller.")
    return offline(options(config_option(output_option(click.pass_obj(function)))))


def _identifier(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and not is_identifier(value):
        raise click.BadParameter(f"{value!r} is no name of ours; lunanexa journal tail shows them")
    return value


@click.group("journal")
def command() -> None:
    """Verify, follow, show, replay and export journal and ledger."""


@command.command("verify")
@click.option("--file", type=click.File("rb"), metavar="FILE", help="An exported journal, instead of a controller's.")
@_common
def verify(tools: Tools, /, file: Any, offline: bool, config: str | None, output: str, **flags: str | None) -> None:
    """Verify every row: sequence, epochs, both hash chains, canonical bytes. Status 1 with the first bad row."""
    verifier = use_source(tools, flags, config, verify_source, offline=offline) if file is None else verify_file(file)
    _tell_verified(verifier, output, "every row stands in its place", _RESTORE if file is None else _EXPORT)


@command.command("tail")
@click.option("-n", "--lines", type=click.IntRange(0, PAGE_ROWS_MAX), default=20, show_default=True, metavar="N")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on.")
@click.option("--chain", type=click.Choice([chain.value for chain in Chain]), help="Rows of one chain.")
@click.option("--action", metavar="NAME", callback=_identifier, help="Such as key.created.")
@click.option("--target", metavar="NAME", callback=_identifier, help="What rows are about: a key, a node, a workload.")
@click.option("--actor", metavar="NAME", callback=_identifier, help="Who did it.")
@_common
def tail(
    tools: Tools,
    /,
    lines: int,
    follow: bool,
    chain: str | None,
    action: str | None,
    target: str | None,
    actor: str | None,
    offline: bool,
    config: str | None,
    output: str,
    **flags: str | None,
) -> None:
    """Print the newest rows, a line each; with `-o json` a JSON document each."""
    if follow and offline:
        raise click.UsageError("nothing is written to the journal of a stopped controller: leave out --follow")
    query = PageQuery(
        limit=PAGE_ROWS_MAX, chain=None if chain is None else Chain(chain), action=action, target=target, actor=actor
    )
    use_source(tools, flags, config, partial(_tail, query, lines, follow, output), offline=offline)


@command.command("show")
@click.argument("sequence", type=_row_number)
@_common
def show(tools: Tools, /, sequence: int, offline: bool, config: str | None, output: str, **flags: str | None) -> None:
    """Show one row, all of it."""
    row = use_source(tools, flags, config, partial(_row, sequence), offline=offline)
    if row is None:
        fail(f"there is no row {sequence}", hint="see the newest, with the same options: lunanexa journal tail")
    if output == JSON:
        print_json(row_document(row))
    else:
        click.echo(row_page(row))


@command.command("replay")
@click.option("--until", type=_row_number, metavar="SEQUENCE", help="The state after that row, not the newest.")
@_common
def replay(
    tools: Tools, /, until: int | None, offline: bool, config: str | None, output: str, **flags: str | None
) -> None:
    """Rebuild the state from the rows, and compare it with the live one. Status 1 when they differ."""
    work = partial(replay_source, until=until, version=version("lunanexa"))
    try:
        replayed = use_source(tools, flags, config, work, offline=offline)
    except TooEarly as error:
        _fail_early(error)
    if output == JSON:
        print_json(replayed.document())
    else:
        counts = ", ".join(f"{name} {count:,}" for name, count in replayed.tables.items() if count)
        click.echo(f"sequence  {replayed.sequence}\ndigest    {replayed.digest}\ntables    {counts or 'all empty'}")
        compared = "the same" if replayed.matches else f"not compared: {replayed.why_not}"
        click.echo(f"live      {'DIFFERS' if replayed.matches is False else compared}")
    if replayed.problem is not None:
        fail(replayed.problem, hint=_RESTORE)
    if replayed.matches is False:
        fail("the live state is not what the rows say", hint="restart the controller: a start replays the journal")


@command.command("export")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--until", type=_row_number, metavar="SEQUENCE", help="Rows up to that one.")
@_common
def export(
    tools: Tools, /, file: str, until: int | None, offline: bool, config: str | None, output: str, **flags: str | None
) -> None:
    """Write all rows with their hashes to a new FILE, as JSON lines that `lunanexa journal verify --file` checks."""
    try:
        with new_export(file) as opened:
            work = partial(export_rows, file=opened, until=until)
            verifier = use_source(tools, flags, config, work, offline=offline)
            _tell_verified(verifier, output, f"{file} is written", _RESTORE)
    except TooEarly as error:
        _fail_early(error)
    except OSError as error:
        fail(f"{file}: {error.strerror or error}", hint="name a file that is not there yet, where there is room")


def _fail_early(error: TooEarly) -> NoReturn:
    fail(str(error), hint=f"leave out --until, or name row {error.least} or a later one")


def _tell_verified(verifier: Verifier, output: str, success: str, mend: str) -> None:
    if output == JSON:
        print_json(verifier.document())
    elif verifier.rows or verifier.problem is None:
        click.echo(verifier_page(verifier))
    if verifier.problem is not None:
        write_failure(verifier.problem, hint=mend)
        raise SystemExit(1)
    if output != JSON:
        click.echo(success)


async def _row(sequence: int, source: Source) -> Row | None:
    page = await source.page(PageQuery(limit=1, cursor=sequence - 1, newest_first=False))
    return page.rows[0] if page.rows and page.rows[0].sequence == sequence else None


async def _tail(query: PageQuery, lines: int, follow: bool, output: str, source: Source) -> None:
    found: list[Row] = []
    page = await source.page(attrs.evolve(query, limit=max(lines, 1)))
    last = page.head
    found += page.rows
    while len(found) < lines and page.cursor is not None:
        page = await source.page(attrs.evolve(query, limit=lines - len(found), cursor=page.cursor))
        found += page.rows
    for row in reversed(found[:lines]):
        _print_row(row, output)
    if lines and not found and not follow:
        write_note("no row is like that")
    while follow:
        await trio.sleep(_FOLLOW_S)
        cursor: int | None = last
        while cursor is not None:
            page = await source.page(attrs.evolve(query, cursor=cursor, newest_first=False))
            for row in page.rows:
                _print_row(row, output)
            cursor, last = page.cursor, page.head


def _print_row(row: Row, output: str) -> None:
    click.echo(json_line(row_document(row)) if output == JSON else row_line(row))
