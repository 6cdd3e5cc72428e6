"""``lunanexa recovery``: what a controller knows of a store that lost its newest rows, and the operator's go."""

from collections.abc import Callable
from typing import Any, Final

import click

from lunanexa_apps.cli.asking import ask_operator, entries, print_json
from lunanexa_apps.cli.options import JSON, config_option, output_option, setting_options
from lunanexa_apps.cli.recovery_page import recovery_page
from lunanexa_apps.cli.tools import Tools, confirm, fail
from lunanexa_client import AsyncOperator, Document

_NOTHING: Final = "nothing is being recovered"


def _common(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every subcommand."""
    metavar = {"data_dir": "DIR", "url": "URL", "token_file": "FILE"}
    options = setting_options("data_dir", "url", "token_file", metavar=metavar)
    return options(config_option(output_option(click.pass_obj(function))))


@click.group("recovery")
def command() -> None:
    """Look at a store that lost its newest rows (a restore, a replica that was behind), and go on with it."""


@command.command("plan")
@_common
def plan(tools: Tools, /, config: str | None, output: str, **flags: str | None) -> None:
    """Show why the controller recovers, and what it will do when you say go. It changes nothing."""
    found, _ = ask_operator(tools, flags, config, AsyncOperator.recovery)
    if output == JSON:
        print_json(found)
    else:
        click.echo(recovery_page(found))


@command.command("rebase")
@click.option("--yes", is_flag=True, help="Say go for the plan as it is now, without being asked.")
@_common
def rebase(tools: Tools, /, yes: bool, config: str | None, output: str, **flags: str | None) -> None:
    """Show the plan, ask, and say go: the store counts from here on, and what it lost is given up for good."""
    found, _ = ask_operator(tools, flags, config, AsyncOperator.recovery)
    if output != JSON:
        click.echo(recovery_page(found))
    digest = _digest(found)
    if digest is None:
        if output == JSON:
            print_json(found)
        return
    if not yes:
        if output == JSON:
            fail("the plan was not looked at", hint="see `lunanexa recovery plan`, then repeat with --yes")
        confirm("Go?")
    answer, _ = ask_operator(tools, flags, config, lambda operator: operator.rebase(digest))
    if output == JSON:
        print_json(answer)
    else:
        click.echo(
            f"the store counts from sequence {answer['sequence']} on, in epoch {answer['epoch']}; what was given up to"
            f" epoch {answer['rebased']} and is not in it counts no more"
        )


def _digest(found: Document) -> str | None:
    told = found.get("plan")
    digest = told.get("digest") if isinstance(told, dict) else None
    return digest if isinstance(digest, str) and entries(found, "reasons") else None
