"""A status document as a page for people."""

from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lunanexa_apps.cli.tools import printable
from lunanexa_apps.up.status_view import describe_exit, not_placed
from lunanexa_core.drivers.generic_openai import GENERIC_OPENAI

RECEIPTS_SHOWN: Final = 10
_GOOD: Final = frozenset({"ready", "online", "alive", "Succeeded", "proven", "bound", "True"})
_BAD: Final = frozenset({"failed", "lost", "offline", "revoked", "Failed"})
_WARY: Final = frozenset({"starting", "backoff", "draining", "stopping", "assigned", "suspect", "Cancelled", "False"})


def status_page(document: dict[str, Any], url: str) -> Group:
    """The whole page."""
    parts: list[RenderableType] = [_headline(document, url), Text()]
    nodes, deployments = _list(document, "nodes"), _list(document, "deployments")
    parts += [_nodes(nodes) if nodes else Text("no node has enrolled yet", style="dim"), Text()]
    parts += [_deployments(deployments) if deployments else Text("nothing is deployed", style="dim"), Text()]
    replicas = [(entry, replica) for entry in deployments for replica in _list(entry, "replicas")]
    if replicas:
        parts += [_replicas(replicas), Text()]
    parts += _troubles(deployments)
    parts.append(_usage(document.get("usage")))
    receipts = _list(document, "receipts")[:RECEIPTS_SHOWN]
    if receipts:
        parts += [Text(), _receipts(receipts)]
    return Group(*parts)


def _headline(document: dict[str, Any], url: str) -> Text:
    line = Text.assemble(("LunaNexa ", "bold"), _cell(document.get("version")), ("  at ", "dim"), url)
    line.append(f"  cluster {_word(document.get('cluster'))}", "dim")
    line.append(f"  epoch {_word(document.get('epoch'))}, sequence {_word(document.get('sequence'))}", "dim")
    if document.get("draining"):
        line.append("  draining: nothing new is admitted", "bold yellow")
    return line


def _nodes(nodes: list[dict[str, Any]]) -> Table:
    table = _table("NODE", "STATE", "HEARTBEAT", "MEMORY FREE", "AGENT")
    for node in nodes:
        table.add_row(
            _cell(node.get("node")),
            _cell(node.get("state")),
            _duration(node.get("heartbeat_age_ms"), " ago"),
            _memory(node.get("available_mib"), node.get("total_mib")),
            _cell(node.get("agent_version")),
        )
    return table


def _deployments(deployments: list[dict[str, Any]]) -> Table:
    table = _table("MODEL", "DEPLOYMENT", "ENGINE", "READY", "RUNNING", "WAITING")
    for entry in deployments:
        queue = entry.get("queue") or {}
        limit = queue.get("limit")
        waiting = _word(queue.get("waiting")) + ("" if limit is None else f" of {limit}")
        table.add_row(
            Text(_word(entry.get("alias")), style="bold"),
            Text(f"{_word(entry.get('deployment'))} (generation {_word(entry.get('generation'))})"),
            _cell(entry.get("driver")),
            Text("yes", style="green") if entry.get("ready") else Text("no", style="yellow"),
            _cell(queue.get("running")),
            Text(waiting),
        )
    return table


def _replicas(replicas: list[tuple[dict[str, Any], dict[str, Any]]]) -> Table:
    table = _table("REPLICA OF", "NODE", "STATE", "IDENTITY", "PID", "MEMORY", "SLOTS", "RESTARTS")
    for entry, replica in replicas:
        table.add_row(
            _cell(entry.get("alias")),
            _cell(replica.get("node")),
            _cell(replica.get("state")),
            _cell(replica.get("identity")),
            _cell(replica.get("pid")),
            _engine_memory(replica.get("memory_mib")),
            _cell(replica.get("slots")),
            _cell(replica.get("restarts")),
        )
    return table


def _engine_memory(mib: object) -> Text:
    if not isinstance(mib, int):
        return _cell(None)
    return Text(f"{mib} MiB" if mib < 10_240 else f"{mib / 1_024:.1f} GiB")


def _troubles(deployments: list[dict[str, Any]]) -> list[RenderableType]:
    """Why something is not ready, as far as the document says, with the engine's last words."""
    lines: list[RenderableType] = []
    for entry in (entry for entry in deployments if not entry.get("ready")):
        alias = _word(entry.get("alias"))
        obstacle = not_placed({"deployments": [entry]}, str(entry.get("deployment")))
        if obstacle is not None:
            lines.append(Text(f"{alias}: no place for it ({printable(obstacle)})", style="yellow"))
        for replica in _list(entry, "replicas"):
            ended = replica.get("exit")
            reason = describe_exit(ended)
            if reason is not None:
                lines.append(Text(f"{alias}: its engine {reason}", style="yellow"))
                lines += [Text(f"  | {printable(str(line))}", style="dim") for line in _texts(ended, "last_lines")]
            elif entry.get("driver") == GENERIC_OPENAI.name and replica.get("state") == "starting":
                lines.append(Text(f"{alias}: the server that runs it does not answer, or not for it", style="yellow"))
            elif replica.get("not_routable") is not None:
                lines.append(Text(f"{alias}: no requests go to it ({_word(replica['not_routable'])})", style="yellow"))
    return [*lines, Text()] if lines else []


def _usage(usage: Any) -> Text:
    if not isinstance(usage, dict):
        return Text("no usage yet", style="dim")
    counts = ", ".join(f"{_word(usage.get(name))} {name}" for name in ("succeeded", "failed", "cancelled"))
    tokens = f"{_word(usage.get('input_tokens'))} tokens in, {_word(usage.get('output_tokens'))} out"
    return Text.assemble(("USAGE  ", "bold"), f"{_word(usage.get('requests'))} requests ({counts}); {tokens}")


def _receipts(receipts: list[dict[str, Any]]) -> Table:
    table = _table("LAST REQUESTS", "MODEL", "STATE", "TOKENS", "QUEUED", "FIRST OUTPUT", "TOTAL")
    for position, column in enumerate(table.columns):
        # Folded words would fill a narrow screen: identifier, model and state are cut there. The JSON document
        # has them whole.
        column.no_wrap, column.overflow = position > 2, "ellipsis"
    for receipt in receipts:
        state = _cell(receipt.get("state"))
        if receipt.get("outcome"):
            state.append(f" {receipt['outcome']}", style="dim")
        table.add_row(
            _cell(receipt.get("workload")),
            _cell(receipt.get("alias")),
            state,
            Text(f"{_word(receipt.get('input_tokens'))} in, {_word(receipt.get('output_tokens'))} out"),
            _duration(receipt.get("queue_ms")),
            _duration(receipt.get("first_output_ms")),
            _duration(receipt.get("total_ms")),
        )
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _cell(value: object) -> Text:
    word = _word(value)
    style = "green" if word in _GOOD else "red" if word in _BAD else "yellow" if word in _WARY else ""
    return Text(word, style=style)


def _word(value: object) -> str:
    """Unknown is shown as such, never as zero."""
    return "-" if value is None else printable(str(value))


def _duration(value: object, suffix: str = "") -> Text:
    if not isinstance(value, int):
        return Text("-")
    return Text((f"{value} ms" if value < 1_000 else f"{value / 1_000:.1f} s") + suffix)


def _memory(available: object, total: object) -> Text:
    if not isinstance(available, int) or not isinstance(total, int):
        return Text("-")
    return Text(f"{available / 1024:.1f} of {total / 1024:.1f} GiB")


def _list(document: Any, name: str) -> list[dict[str, Any]]:
    entries = document.get(name) if isinstance(document, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _texts(document: Any, name: str) -> list[object]:
    entries = document.get(name) if isinstance(document, dict) else None
    return list(entries) if isinstance(entries, list) else []
