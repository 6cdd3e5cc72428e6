"""Documents of nodes as pages for people."""

from collections.abc import Sequence
from typing import Any, Final

import attrs
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from lunanexa_apps.cli.asking import entries
from lunanexa_apps.cli.cells import WIDE, cell, cut_columns, date, duration, table, why_refused, word
from lunanexa_client import Document
from lunanexa_core.southbound.skew import is_far_off

_DIRECTIVES: Final = {"cordon": "yellow", "drain": "yellow", "retire": "red"}


def nodes_page(nodes: Sequence[Document]) -> RenderableType:
    """All nodes, a line each."""
    return NodesTable(nodes) if nodes else Text("no node has enrolled yet", style="dim")


@attrs.frozen
class NodesTable:
    """Nodes, a line each; a narrow screen does without certificate, address and reason, which ``node show`` tells."""

    nodes: Sequence[Document]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> list[RenderableType]:
        wide = options.max_width >= WIDE
        more = ("CERTIFICATE", "REACHED AT", "REASON") if wide else ()
        page = table("NODE", "STATE", "DIRECTIVE", "REPLICAS", "IN PROGRESS", "HEARTBEAT", *more)
        cut_columns(page, len(page.columns) - 1 if wide else 0)
        for node in self.nodes:
            page.add_row(
                Text(word(node.get("node")), style="bold"),
                _state(node),
                _directive(node),
                cell(node.get("replicas")),
                cell(node.get("in_flight")),
                duration(node.get("heartbeat_age_ms"), " ago"),
                *((_certificate(node), _address(node), cell(node.get("reason"))) if wide else ()),
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
        ("enrolled", _enrolled(node)),
        ("certificate", _certificate(node, " left")),
        ("reached at", _address(node)),
        ("heartbeat", duration(node.get("heartbeat_age_ms"), " ago")),
        ("memory free", _memory(node)),
        ("clock", clock(node)),
        ("agent", cell(node.get("agent_version"))),
        ("document", f"generation {word(node.get('generation'))}"),
        ("in progress", cell(node.get("in_flight"))),
    ]
    if node.get("document_refusal") is not None:
        rows.append(("refuses", Text(f"its newest document ({word(node.get('document_refusal'))})", style="yellow")))
    rows += [("refuses", _refused(one)) for one in entries(node, "refused")]
    if node.get("within_ms") is not None:
        rows.append(("emptied", f"within {duration(node.get('within_ms'))}"))
    for row in rows:
        page.add_row(*row)
    replicas = entries(node, "replicas")
    return Group(page, Text(), _replicas(replicas) if replicas else Text("nothing runs on it", style="dim"))


def _refused(one: dict[str, Any]) -> Text:
    return Text(f"{word(one.get('assignment'))} ({why_refused(one.get('refusal'))})", style="yellow")


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
    out = node.get("retired") or node.get("revoked") or not node.get("enrolled", True)
    if out and node.get("token_expires_in_ms") is not None:
        return Text("may enrol", style="yellow")
    if node.get("retired"):
        return Text("retired", style="dim")
    if node.get("revoked"):
        return Text("revoked", style="red")
    if not node.get("enrolled", True):
        return Text("not enrolled", style="yellow")
    state = cell(node.get("state"))
    return (
        state.append(", clock off", "yellow") if is_far_off(node.get("skew_ms"), node.get("skew_error_ms")) else state
    )


def _enrolled(node: Document) -> Text:
    since, left_ms = date(node.get("enrolled_wall_ms")), node.get("token_expires_in_ms")
    if node.get("revoked"):
        since.append(", revoked", "red")
    return since if left_ms is None else since.append(f", may enrol for {duration(left_ms)}", "yellow")


def _certificate(node: Document, suffix: str = "") -> Text:
    found = node.get("certificate")
    left_ms = found.get("expires_in_ms") if isinstance(found, dict) else None
    if not isinstance(left_ms, int):
        return Text("-")
    return duration(left_ms, suffix) if left_ms > 0 else Text("expired", style="red")


def _address(node: Document) -> Text:
    """Of one without an address only engines on the controller's own machine are reached; one that has yet to enrol may
    bring one."""
    address = node.get("data_address")
    return Text("loopback" if address is None and node.get("enrolled", True) else word(address))


def _directive(node: Document) -> Text:
    directive = word(node.get("directive"))
    done = directive == "drain" and node.get("drained")
    return Text("drained" if done else directive, style=_DIRECTIVES.get(directive, ""))


def clock(node: Document) -> Text:
    """How far a node's clock is from its controller's, and how sure that is."""
    skew_ms, error_ms = node.get("skew_ms"), node.get("skew_error_ms")
    if not isinstance(skew_ms, int) or not isinstance(error_ms, int):
        return Text("-")
    if abs(skew_ms) <= error_ms:
        return Text.assemble("within ", duration(error_ms))
    way = "behind" if skew_ms > 0 else "ahead"
    warns = is_far_off(skew_ms, error_ms)
    return Text.assemble(duration(abs(skew_ms)), f" {way}", style="yellow" if warns else "")


def _memory(node: Document) -> Text:
    available, total = node.get("available_mib"), node.get("total_mib")
    if not isinstance(available, int) or not isinstance(total, int):
        return Text("-")
    return Text(f"{available / 1024:.1f} of {total / 1024:.1f} GiB")
