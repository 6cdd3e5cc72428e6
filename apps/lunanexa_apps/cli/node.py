"""``lunanexa node``: the fleet's nodes, and what they shall do. Who may be one is in ``node_trust``."""

from typing import Final

import click

from lunanexa_apps.cli.asking import ask_operator, entries, print_json
from lunanexa_apps.cli.drain_watch import empty_node
from lunanexa_apps.cli.key import DurationMs
from lunanexa_apps.cli.node_options import known_name, why
from lunanexa_apps.cli.node_trust import address, revoke, token
from lunanexa_apps.cli.options import JSON, operator_options
from lunanexa_apps.cli.target import command_of
from lunanexa_apps.cli.tools import Tools, confirm, fail, write_note
from lunanexa_client import AsyncOperator

_LIST: Final = "node list"


_within: Final = click.option(
    "--within",
    "within_ms",
    type=DurationMs(),
    metavar="TIME",
    help="Let it take so long at most, such as 90s or 2h; without it ten minutes.",
)
_timeout: Final = click.option(
    "--timeout", "timeout_ms", type=DurationMs(), metavar="TIME", help="Wait so long at most, such as 90s or 15m."
)
_no_wait: Final = click.option("--no-wait", is_flag=True, help="Return once it is begun.")


@click.group("node")
def command() -> None:
    """Let nodes in and out of the fleet, and say what they shall do."""


for one in (token, revoke, address):
    command.add_command(one)


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
@known_name
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
@known_name
@why
@operator_options
def activate(
    tools: Tools, /, name: str, reason: str | None, config: str | None, output: str, **flags: str | None
) -> None:
    """Give a node work again; it takes a drain or a retirement back that is not over."""
    found, target = ask_operator(
        tools, flags, config, lambda operator: operator.set_directive(name, "active", reason=reason), listed_by=_LIST
    )
    if output == JSON:
        print_json(found)
        return
    click.echo(f"{name} is active")
    if found.get("revoked"):
        write_note(f"it is revoked all the same; let it in again: {command_of(target, f'node token {name} --again')}")


@command.command("cordon")
@known_name
@why
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
            undo = command_of(target, f"node activate {name}")
            write_note(f"no other node serves {replica['alias']}; undo it: {undo}")


@command.command("drain")
@known_name
@why
@_within
@_timeout
@_no_wait
@operator_options
def drain(
    tools: Tools,
    /,
    name: str,
    reason: str | None,
    within_ms: int | None,
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
        within_ms=within_ms,
        timeout_ms=timeout_ms,
        wait=not no_wait,
        json=output == JSON,
    )


@command.command("retire")
@known_name
@why
@_within
@_timeout
@_no_wait
@click.option("--yes", is_flag=True, help="Don't ask.")
@operator_options
def retire(
    tools: Tools,
    /,
    name: str,
    reason: str | None,
    within_ms: int | None,
    timeout_ms: int | None,
    no_wait: bool,
    yes: bool,
    config: str | None,
    output: str,
    **flags: str | None,
) -> None:
    """Empty a node as drain does, and have done with it: once it is empty it is heard no more."""
    if not yes:
        if output == JSON:
            fail("a node that is retired must be enrolled anew", hint="repeat it with --yes")
        confirm(f"Retire {name}? Once it is empty it comes back with a new token only.")
    empty_node(
        tools,
        flags,
        config,
        name=name,
        directive="retire",
        reason=reason,
        within_ms=within_ms,
        timeout_ms=timeout_ms,
        wait=not no_wait,
        json=output == JSON,
    )
