"""Documents of nodes as pages for people."""

from collections.abc import Sequence
from typing import Any, Final

import attrs
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from lunanexa_apps.cli.asking import entries
from lunanexa_apps.cli.cells import WIDE, cell, cut_columns, duration, table, word
from lunanexa_client import Document

_DIRECTIVES: Final = {"cordon": "yellow", "drain": "yellow", "retire": "red"}


def nodes_page(nodes: Sequence[Document]) -> RenderableType:
    """All nodes, a line each."""
    return NodesTable(nodes) if nodes else Text("no node has enrolled yet", style="dim")


@attrs.frozen
class NodesTable:
    """Nodes, a line each; a narrow screen does without memory, agent and reason, which ``node show`` tells."""

    nodes: Sequence[Document]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> list[RenderableType]:
        wide = options.max_width >= WIDE
        more = ("MEMORY FREE", "AGENT", "REASON") if wide else ()
        page = table("NODE", "STATE", "DIRECTIVE", "REPLICAS", "IN PROGRESS", "HEARTBEAT", *more)
        if not wide:
            cut_columns(page, 0)
        for node in self.nodes:
            page.add_row(
                Text(word(node.get("node")), style="bold"),
                _state(node),
                _directive(node),
                cell(node.get("replicas")),
                cell(node.get("in_flight")),
                duration(node.get("heartbeat_age_ms"), " ago"),
                *((_memory(node), cell(node.get("agent_version")), cell(node.get("reason"))) if wide else ()),
            )
        return [page]


def node_page(node: Document) -> Group:
    """One node, all of it."""
    page = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    page.add_column(style="dim")
    page.add_column(overflow="fold")
    rows: list[tuple[str, str | Text]] = [
        ("node", Text(word(node.get("node")), style="bold")),
        ("state", _state(node)),
        ("directive", _directive(node)),
        ("reason", cell(node.get("reason"))),
        ("heartbeat", duration(node.get("heartbeat_age_ms"), " ago")),
        ("memory free", _memory(node)),
        ("agent", cell(node.get("agent_version"))),
        ("document", f"generation {word(node.get('generation'))}"),
        ("in progress", cell(node.get("in_flight"))),
    ]
    if node.get("document_refusal") is not None:
        rows.append(("refuses", Text(f"its newest document ({word(node.get('document_refusal'))})", style="yellow")))
    for row in rows:
        page.add_row(*row)
    replicas = entries(node, "replicas")
    return Group(page, Text(), _replicas(replicas) if replicas else Text("nothing runs on it", style="dim"))


def _replicas(replicas: list[dict[str, Any]]) -> Table:
    found = table("MODEL", "DEPLOYMENT", "STATE", "IN PROGRESS", "NEW REQUESTS", "ELSEWHERE")
    for replica in replicas:
        found.add_row(
            Text(word(replica.get("alias")), style="bold"),
            cell(replica.get("deployment")),
            cell(replica.get("state")),
            cell(replica.get("in_flight")),
            Text("yes", style="green") if replica.get("routable") else _why_not(replica),
            _elsewhere(replica),
        )
    return found


def _why_not(replica: dict[str, Any]) -> Text:
    reason = replica.get("not_routable")
    return Text("no" if reason is None else f"no: {word(reason)}", style="yellow")


def _elsewhere(replica: dict[str, Any]) -> str:
    others = entries(replica, "elsewhere")
    return ", ".join(f"{word(one.get('node'))} ({word(one.get('state'))})" for one in others) or "-"


def _state(node: Document) -> Text:
    if node.get("retired"):
        return Text("retired", style="dim")
    return cell(node.get("state")) if node.get("enrolled", True) else Text("not enrolled", style="yellow")


def _directive(node: Document) -> Text:
    directive = word(node.get("directive"))
    done = directive == "drain" and node.get("drained")
    return Text("drained" if done else directive, style=_DIRECTIVES.get(directive, ""))


def _memory(node: Document) -> Text:
    available, total = node.get("available_mib"), node.get("total_mib")
    if not isinstance(available, int) or not isinstance(total, int):
        return Text("-")
    return Text(f"{available / 1024:.1f} of {total / 1024:.1f} GiB")
