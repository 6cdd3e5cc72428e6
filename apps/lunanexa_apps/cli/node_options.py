"""Arguments and options that several commands of ``lunanexa node`` have."""

from typing import Final

import click

from lunanexa_apps.cli.complete import complete_nodes
from lunanexa_core.ids import is_identifier
from lunanexa_core.nodes.directive import REASON_MAX


def _known(_: click.Context, __: click.Parameter, value: str) -> str:
    if not is_identifier(value):
        raise click.BadParameter(f"{value!r} is no node's name; lunanexa node list shows them")
    return value


def _new(_: click.Context, __: click.Parameter, value: str) -> str:
    if not is_identifier(value):
        raise click.BadParameter("a node's name has ASCII letters, digits and -_.: only, 1 to 256 of them")
    return value


def _reason(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and not (value.isprintable() and len(value) <= REASON_MAX):
        raise click.BadParameter(f"{REASON_MAX} printable characters at most")
    return value


known_name: Final = click.argument("name", callback=_known, shell_complete=complete_nodes)
new_name: Final = click.argument("name", callback=_new, shell_complete=complete_nodes)
why: Final = click.option("--reason", metavar="TEXT", callback=_reason, help="Why; it is kept in the journal.")
