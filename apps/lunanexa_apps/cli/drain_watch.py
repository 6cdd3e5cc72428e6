"""Emptying a node, as a person watches it: begun by one call, then looked at until nothing runs there."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import attrs
import click
import trio

from lunanexa_apps.cli.asking import OPERATOR_TOKEN, entries, print_json, use_client
from lunanexa_apps.cli.cells import word
from lunanexa_apps.cli.options import settings_or_exit
from lunanexa_apps.cli.target import Target, command_of, fail_with, find_target
from lunanexa_apps.cli.tools import Tools, fail, write_failure
from lunanexa_client import AsyncClient, AsyncOperator, ConnectionFailed, Document, LunaNexaError, Unavailable

LOOK_S: Final = 0.5
SILENT_S: Final = 30.0
"""So long nobody may answer, as while another controller takes over."""
EXIT_LATER: Final = 75
"""sysexits' EX_TEMPFAIL: it goes on, and was not over in time."""
EXIT_INTERRUPTED: Final = 130


@attrs.frozen
class Watched:
    """The node as it was seen last; ``over``: it is empty, or retired where that was asked for."""

    node: Document
    over: bool


def empty_node(
    tools: Tools,
    flags: dict[str, str | None],
    config: str | None,
    *,
    name: str,
    directive: str,
    reason: str | None,
    within_ms: int | None,
    timeout_ms: int | None,
    wait: bool,
    json: bool,
) -> None:
    """Ends the program when it can't be begun, or is not over in time."""
    target = find_target(tools, settings_or_exit(flags, config))
    tell: Callable[[str], None] = (lambda _: None) if json else click.echo

    async def work(client: AsyncClient) -> Watched:
        first = await client.operator.set_directive(name, directive, reason=reason, within_ms=within_ms)
        if not wait:
            return Watched(first, is_over(first, directive))
        return await watch(client.operator, first, directive, timeout_ms=timeout_ms, tell=tell)

    try:
        found = tools.run(partial(use_client, tools, target.operator_settings(), work))
    except KeyboardInterrupt:
        write_failure(f"interrupted; {name} goes on to be emptied if that was begun", hint=_later(target, name))
        raise SystemExit(EXIT_INTERRUPTED) from None
    if isinstance(found, LunaNexaError):
        fail_with(target, found, token_name=OPERATOR_TOKEN, listed_by="node list")
    if json:
        print_json(found.node)
    if found.over:
        lost = "lost, and has nothing assigned to it any more" if is_lost(found.node) else "drained"
        tell(f"{name} is {'retired' if directive == 'retire' else lost}")
    elif wait:
        fail(f"{name} is not empty yet; that goes on", hint=_later(target, name), exit_code=EXIT_LATER)
    else:
        tell(f"{name} is being emptied; {_later(target, name)}")


def is_over(node: Document, directive: str) -> bool:
    """Whether nothing is left to wait for: of a lost node nobody hears what still runs there."""
    given_up = is_lost(node) and not any(one.get("deployment") for one in entries(node, "replicas"))
    return node.get("retired" if directive == "retire" else "drained") is True or given_up


def is_lost(node: Document) -> bool:
    """Whether nobody hears of it."""
    return node.get("state") == "lost"


async def watch(
    operator: AsyncOperator, node: Document, directive: str, *, timeout_ms: int | None, tell: Callable[[str], None]
) -> Watched:
    """Looks until it is over or the time is; each change is told once."""
    told: tuple[str, ...] = ()
    until = trio.current_time() + (float("inf") if timeout_ms is None else timeout_ms / 1_000)
    heard = trio.current_time()
    while True:
        lines = tuple(progress(node))
        for line in lines:
            if line not in told:
                tell(line)
        told = lines
        if is_over(node, directive) or trio.current_time() >= until:
            return Watched(node, is_over(node, directive))
        await trio.sleep(min(LOOK_S, max(0.0, until - trio.current_time())))
        try:
            node = await operator.node(str(node.get("node")))
            heard = trio.current_time()
        except (ConnectionFailed, Unavailable):
            if trio.current_time() - heard > SILENT_S:
                raise


def progress(node: Document) -> Iterator[str]:
    """One line for each replica that is still there."""
    if is_lost(node):
        yield f"{word(node.get('node'))} is lost: nobody can tell what still runs there"
    for replica in entries(node, "replicas"):
        yield f"  {word(replica.get('alias') or replica.get('assignment'))}: {', '.join(_parts(replica))}"


def _parts(replica: dict[str, Any]) -> Iterator[str]:
    elsewhere = entries(replica, "elsewhere")
    serving = [word(one.get("node")) for one in elsewhere if one.get("routable")]
    coming = [f"{word(one.get('node'))} ({word(one.get('state'))})" for one in elsewhere if not one.get("routable")]
    in_flight = replica.get("in_flight")
    if replica.get("routable"):
        yield "serves until its successor does"
    elif replica.get("deployment") is None:
        yield f"stops ({word(replica.get('state'))})"
    elif in_flight:
        yield "takes no new request"
    else:
        yield "is about to stop"
    if in_flight:
        yield f"{in_flight} request{'s' if in_flight != 1 else ''} in progress"
    if serving:
        yield f"served by {' and '.join(serving)}"
    if coming:
        yield f"comes up on {' and '.join(coming)}"
    if not elsewhere and replica.get("deployment") is not None:
        yield "no other node has one"


def _later(target: Target, name: str) -> str:
    show, back = command_of(target, f"node show {name}"), command_of(target, f"node activate {name}")
    return f"see how far it is: {show}; take it back: {back}"
