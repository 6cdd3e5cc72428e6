"""``lunanexa node``: the fleet's nodes, and what they shall do."""

from typing import Final

import click

from lunanexa_apps.cli.asking import ask_operator, entries, print_json
from lunanexa_apps.cli.complete import complete_nodes
from lunanexa_apps.cli.drain_watch import empty_node
from lunanexa_apps.cli.key import DurationMs
from lunanexa_apps.cli.options import JSON, operator_options
from lunanexa_apps.cli.target import command_of
from lunanexa_apps.cli.tools import Tools, fail, wants_color
from lunanexa_client import AsyncOperator
from lunanexa_core.ids import is_identifier

_LIST: Final = "node list"
_REASON_MAX: Final = 256


def _identifier(_: click.Context, __: click.Parameter, value: str) -> str:
    if not is_identifier(value):
        raise click.BadParameter(f"{value!r} is no node's name; lunanexa node list shows them")
    return value


def _reason(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and not (value.isprintable() and len(value) <= _REASON_MAX):
        raise click.BadParameter(f"{_REASON_MAX} printable characters at most")
    return value


_name: Final = click.argument("name", callback=_identifier, shell_complete=complete_nodes)
_why: Final = click.option("--reason", metavar="TEXT", callback=_reason, help="Why; it is kept in the journal.")
_timeout: Final = click.option(
    "--timeout", "timeout_ms", type=DurationMs(), metavar="TIME", help="Wait so long at most, such as 90s or 15m."
)
_no_wait: Final = click.option("--no-wait", is_flag=True, help="Return once it is begun.")


@click.group("node")
def command() -> None:
    """List, show, cordon, activate, drain and retire nodes."""


@command.command("list")
@operator_options
def list_nodes(tools: Tools, /, config: str | None, output: str, **flags: str | None) -> None:
    """List all nodes: state, directive, and how much each does."""
    found, _ = ask_operator(tools, flags, config, AsyncOperator.nodes)
    if output == JSON:
        print_json({"data": found})
        return
    from lunanexa_apps.cli.node_page import nodes_page
    from lunanexa_apps.cli.pages import page_console

    page_console().print(nodes_page(found))


@command.command("show")
@_name
@operator_options
def show(tools: Tools, /, name: str, config: str | None, output: str, **flags: str | None) -> None:
    """Show one node, every replica on it, and where else each deployment runs."""
    found, _ = ask_operator(tools, flags, config, lambda operator: operator.node(name), listed_by=_LIST)
    if output == JSON:
        print_json(found)
        return
    from lunanexa_apps.cli.node_page import node_page
    from lunanexa_apps.cli.pages import page_console

    page_console().print(node_page(found))


@command.command("activate")
@_name
@_why
@operator_options
def activate(
    tools: Tools, /, name: str, reason: str | None, config: str | None, output: str, **flags: str | None
) -> None:
    """Give a node work again; it takes a drain or a retirement back that is not over."""
    found, _ = ask_operator(
        tools, flags, config, lambda operator: operator.set_directive(name, "active", reason=reason), listed_by=_LIST
    )
    if output == JSON:
        print_json(found)
    else:
        click.echo(f"{name} is active")


@command.command("cordon")
@_name
@_why
@operator_options
def cordon(
    tools: Tools, /, name: str, reason: str | None, config: str | None, output: str, **flags: str | None
) -> None:
    """Give a node no request and no replica any more. What it runs stays loaded, and ends what is in progress."""
    found, target = ask_operator(
        tools, flags, config, lambda operator: operator.set_directive(name, "cordon", reason=reason), listed_by=_LIST
    )
    if output == JSON:
        print_json(found)
        return
    click.echo(f"{name} is cordoned")
    for replica in entries(found, "replicas"):
        if replica.get("alias") is not None and not any(one.get("routable") for one in entries(replica, "elsewhere")):
            note = f"no other node serves {replica['alias']}; undo it: {command_of(target, f'node activate {name}')}"
            click.echo(click.style("note:  ", bold=True) + note, err=True, color=wants_color())


@command.command("drain")
@_name
@_why
@_timeout
@_no_wait
@operator_options
def drain(
    tools: Tools,
    /,
    name: str,
    reason: str | None,
    timeout_ms: int | None,
    no_wait: bool,
    config: str | None,
    output: str,
    **flags: str | None,
) -> None:
    """Empty a node: replicas come up elsewhere first, what is in progress ends, then its engines stop.

    It shows how far it is, and returns when nothing runs there any more. Ctrl-C ends the waiting, not the drain.
    """
    empty_node(
        tools,
        flags,
        config,
        name=name,
        directive="drain",
        reason=reason,
        timeout_ms=timeout_ms,
        wait=not no_wait,
        json=output == JSON,
    )


@command.command("retire")
@_name
@_why
@_timeout
@_no_wait
@click.option("--yes", is_flag=True, help="Don't ask.")
@operator_options
def retire(
    tools: Tools,
    /,
    name: str,
    reason: str | None,
    timeout_ms: int | None,
    no_wait: bool,
    yes: bool,
    config: str | None,
    output: str,
    **flags: str | None,
) -> None:
    """Empty a node as drain does, and have done with it: once it is empty it is heard no more, for good."""
    if not yes:
        if output == JSON:
            fail("a retirement can't be undone once the node is empty", hint="repeat it with --yes")
        click.confirm(f"Retire {name}? Once it is empty that can't be undone.", abort=True, err=True)
    empty_node(
        tools,
        flags,
        config,
        name=name,
        directive="retire",
        reason=reason,
        timeout_ms=timeout_ms,
        wait=not no_wait,
        json=output == JSON,
    )
