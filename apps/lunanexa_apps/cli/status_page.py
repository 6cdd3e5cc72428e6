"""A status document as a page for people."""

from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lunanexa_apps.cli.asking import entries
from lunanexa_apps.cli.cells import cell, duration, refusal_line, table, word
from lunanexa_apps.cli.recovery_page import reason_line
from lunanexa_apps.cli.request_pages import EndedTable
from lunanexa_apps.cli.tools import printable
from lunanexa_apps.up.status_view import describe_exit, not_placed
from lunanexa_client import Document

RECEIPTS_SHOWN: Final = 10


def status_page(document: Document, url: str) -> Group:
    """The whole page."""
    parts: list[RenderableType] = [_headline(document, url), Text()]
    parts += _recovery(document)
    alerts = entries(document, "alerts")
    parts += [Text(f"alert: {word(alert.get('message'))}", style="bold red") for alert in alerts]
    parts += [Text()] if alerts else []
    nodes, deployments = entries(document, "nodes"), entries(document, "deployments")
    parts += [_nodes(nodes) if nodes else Text("no node has enrolled yet", style="dim"), Text()]
    parts += [_deployments(deployments) if deployments else Text("nothing is deployed", style="dim"), Text()]
    replicas = [(entry, replica) for entry in deployments for replica in entries(entry, "replicas")]
    if replicas:
        parts += [_replicas(replicas), Text()]
    parts += _refused(nodes)
    parts += _troubles(deployments)
    parts.append(_usage(document.get("usage")))
    receipts = entries(document, "receipts")[:RECEIPTS_SHOWN]
    if receipts:
        parts += [Text(), EndedTable("LAST REQUESTS", receipts)]
    return Group(*parts)


def _headline(document: Document, url: str) -> Text:
    line = Text.assemble(("LunaNexa ", "bold"), cell(document.get("version")), ("  at ", "dim"), url)
    line.append(f"  cluster {word(document.get('cluster'))}", "dim")
    line.append(f"  epoch {word(document.get('epoch'))}, sequence {word(document.get('sequence'))}", "dim")
    if document.get("leading") is False:
        line.append(f"  standby: {word(document.get('leader') or 'no controller')} leads", "bold yellow")
    if document.get("store_ok") is False:
        line.append("  its store can't be used: see its disk or database; nothing is admitted", "bold red")
    if document.get("draining"):
        line.append("  draining: nothing new is admitted", "bold yellow")
    return line


def _recovery(document: Document) -> list[RenderableType]:
    reasons = entries(document, "recovering")
    if not reasons:
        return []
    lines = [Text("RECOVERING: nothing is served before you say go", style="bold red")]
    lines += [Text(f"  {printable(reason_line(reason))}", style="red") for reason in reasons]
    return [*lines, Text("  next: lunanexa recovery plan", style="bold"), Text()]


def _nodes(nodes: list[dict[str, Any]]) -> Table:
    found = table("NODE", "STATE", "HEARTBEAT", "MEMORY FREE", "AGENT")
    for node in nodes:
        found.add_row(
            cell(node.get("node")),
            _state(node),
            duration(node.get("heartbeat_age_ms"), " ago"),
            _memory(node.get("available_mib"), node.get("total_mib")),
            cell(node.get("agent_version")),
        )
    return found


def _state(node: dict[str, Any]) -> Text:
    """What it is, and what an operator wants of it, where that is not the usual."""
    if node.get("retired"):
        return Text("retired", style="dim")
    if node.get("revoked"):
        return Text("revoked", style="red")
    state, directive = cell(node.get("state")), node.get("directive", "active")
    return state if directive == "active" else state.append(f", {word(directive)}", "yellow")


def _deployments(deployments: list[dict[str, Any]]) -> Table:
    found = table("MODEL", "DEPLOYMENT", "ENGINE", "READY", "RUNNING", "WAITING")
    for entry in deployments:
        queue = entry.get("queue") or {}
        limit = queue.get("limit")
        waiting = word(queue.get("waiting")) + ("" if limit is None else f" of {limit}")
        found.add_row(
            Text(word(entry.get("alias")), style="bold"),
            Text(f"{word(entry.get('deployment'))} (generation {word(entry.get('generation'))})"),
            Text(word(entry.get("driver")) + (", adopted" if entry.get("adopted") else "")),
            Text("yes", style="green") if entry.get("ready") else Text("no", style="yellow"),
            cell(queue.get("running")),
            Text(waiting),
        )
    return found


def _replicas(replicas: list[tuple[dict[str, Any], dict[str, Any]]]) -> Table:
    found = table("REPLICA OF", "NODE", "STATE", "IDENTITY", "PID", "MEMORY", "SLOTS", "RESTARTS")
    for entry, replica in replicas:
        found.add_row(
            cell(entry.get("alias")),
            cell(replica.get("node")),
            cell(replica.get("state")),
            cell(replica.get("identity")),
            cell(replica.get("pid")),
            _engine_memory(replica.get("memory_mib")),
            cell(replica.get("slots")),
            cell(replica.get("restarts")),
        )
    return found


def _engine_memory(mib: object) -> Text:
    if not isinstance(mib, int):
        return cell(None)
    return Text(f"{mib} MiB" if mib < 10_240 else f"{mib / 1_024:.1f} GiB")


def _refused(nodes: list[dict[str, Any]]) -> list[RenderableType]:
    """What nodes don't follow of what they shall run."""
    lines: list[RenderableType] = [
        refusal_line(node.get("node"), one.get("assignment"), one.get("refusal"))
        for node in nodes
        for one in entries(node, "refused")
    ]
    return [*lines, Text()] if lines else []


def _troubles(deployments: list[dict[str, Any]]) -> list[RenderableType]:
    """Why something is not ready, as far as the document says, with the engine's last words."""
    lines: list[RenderableType] = []
    for entry in (entry for entry in deployments if not entry.get("ready")):
        alias = word(entry.get("alias"))
        obstacle = not_placed({"deployments": [entry]}, str(entry.get("deployment")))
        if obstacle is not None:
            lines.append(Text(f"{alias}: no place for it ({printable(obstacle)})", style="yellow"))
        for replica in entries(entry, "replicas"):
            ended = replica.get("exit")
            reason = describe_exit(ended)
            if entry.get("adopted") and replica.get("state") != "ready":
                lines.append(Text(f"{alias}: the server that runs it does not answer, or not for it", style="yellow"))
            elif reason is not None:
                lines.append(Text(f"{alias}: its engine {printable(reason)}", style="yellow"))
                lines += [Text(f"  | {printable(str(line))}", style="dim") for line in _texts(ended, "last_lines")]
            elif replica.get("state") == "awaiting_lease":
                lines.append(Text(f"{alias}: waits until its node has heard what it shall run", style="yellow"))
            elif replica.get("state") == "awaiting_memory":
                lines.append(Text(f"{alias}: waits until its node has the memory to start it", style="yellow"))
            elif replica.get("not_routable") is not None:
                lines.append(Text(f"{alias}: no requests go to it ({word(replica['not_routable'])})", style="yellow"))
    return [*lines, Text()] if lines else []


def _usage(usage: Any) -> Text:
    if not isinstance(usage, dict):
        return Text("no usage yet", style="dim")
    counts = ", ".join(f"{word(usage.get(name))} {name}" for name in ("succeeded", "failed", "cancelled"))
    tokens = f"{word(usage.get('input_tokens'))} tokens in, {word(usage.get('output_tokens'))} out"
    requests = "1 request" if usage.get("requests") == 1 else f"{word(usage.get('requests'))} requests"
    return Text.assemble(("USAGE  ", "bold"), f"{requests} ({counts}); {tokens}")


def _memory(available: object, total: object) -> Text:
    if not isinstance(available, int) or not isinstance(total, int):
        return Text("-")
    return Text(f"{available / 1024:.1f} of {total / 1024:.1f} GiB")


def _texts(document: Any, name: str) -> list[object]:
    entries = document.get(name) if isinstance(document, dict) else None
    return list(entries) if isinstance(entries, list) else []
