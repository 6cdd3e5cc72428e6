"""Documents of deployments, and plans for them, as pages for people."""

import json
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lunanexa_apps.cli.asking import entries
from lunanexa_apps.cli.cells import cell, duration, refusal_line, table, word
from lunanexa_client import Document

_ACTIONS: Final = {"place": "green", "restart": "yellow", "remove": "red"}
_SHOWN: Final = 64


def deployments_page(status: Document) -> RenderableType:
    """All deployments, a line each."""
    found = entries(status, "deployments")
    if not found:
        return Text("nothing is deployed", style="dim")
    page = table("DEPLOYMENT", "MODEL", "GENERATION", "ENGINE", "REPLICAS", "SERVES")
    for entry in found:
        page.add_row(
            Text(word(entry.get("deployment")), style="bold"),
            cell(entry.get("alias")),
            cell(entry.get("generation")),
            Text(word(entry.get("driver")) + (", adopted" if entry.get("adopted") else "")),
            _replicas_of(entry),
            _serves(entry),
        )
    declined = [line for entry in found for line in _declined(entry)]
    return Group(page, Text(), *declined) if declined else page


def deployment_page(deployment: Document) -> Group:
    """One deployment, all of it."""
    status = deployment.get("status")
    status = status if isinstance(status, dict) else {}
    queue = status.get("queue") or {}
    page = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    page.add_column(style="dim")
    page.add_column(overflow="fold")
    rows: list[tuple[str, str | Text]] = [
        ("deployment", Text(word(status.get("deployment")), style="bold")),
        ("model", word(status.get("alias"))),
        ("generation", word(deployment.get("generation"))),
        ("engine", f"{word(status.get('driver'))}, as {word(status.get('served_name'))}"),
        ("replicas", _replicas_of(status)),
        ("serves", _serves(status)),
        ("in progress", f"{word(queue.get('running'))}, {word(queue.get('waiting'))} waiting"),
        *_exclusion(deployment.get("spec")),
    ]
    for row in rows:
        page.add_row(*row)
    parts: list[RenderableType] = [page, Text()]
    replicas = entries(status, "replicas")
    parts.append(_replicas(replicas) if replicas else Text("it has no replica", style="dim"))
    declined = _declined(status)
    parts += [*([Text()] if declined else []), *declined, *_awaited(status)]
    refused = status.get("not_placed")
    if isinstance(refused, dict) and refused:
        listed = [{"node": node, "reasons": reasons} for node, reasons in refused.items()]
        parts += [Text(), Text("One more replica finds no place:", style="yellow"), _nodes(listed)]
    return Group(*parts)


def plan_page(plan: Document) -> Group:
    """What would be done, and what can't."""
    kind, name = plan.get("kind"), Text(word(plan.get("deployment")), style="bold")
    generation = word(plan.get("generation"))
    told = {"create": "would be new", "none": f"is as it would be, in generation {generation}"}
    said = told.get(str(kind), f"would change, to generation {generation}")
    parts: list[RenderableType] = [Text.assemble(name, f" {said}")]
    fields = entries(plan, "fields")
    if fields and kind == "change":
        page = table("FIELD", "NOW", "THEN")
        for field in fields:
            page.add_row(cell(field.get("field")), _value(field.get("before")), _value(field.get("after")))
        parts += [Text(), page]
    parts += [Text(), _changes(entries(plan, "changes"))]
    unplaced = plan.get("unplaced")
    if isinstance(unplaced, int) and unplaced:
        line = f"{unplaced} replica{'' if unplaced == 1 else 's'} would find no node, and wait for one"
        parts += [Text(), Text(line, style="yellow")]
    parts += [*_awaited(plan), Text(), _nodes(entries(plan, "nodes"))]
    return Group(*parts)


def _exclusion(spec: object) -> list[tuple[str, str | Text]]:
    """What is special about a deployment that is exclusive, or that may not outlive its node's lease."""
    spec = spec if isinstance(spec, dict) else {}
    rows: list[tuple[str, str | Text]] = []
    if spec.get("exclusive"):
        rows.append(("exclusive", "yes: a place is filled again when its engine is gone for certain"))
    if spec.get("cut_off_keep_ms") is not None:
        rows.append(("cut off", Text.assemble("kept for ", duration(spec["cut_off_keep_ms"]), " after the lease")))
    return rows


def _declined(status: Document) -> list[RenderableType]:
    """The nodes whose owners don't let it run there, each on a line."""
    declined = status.get("declined")
    return [
        refusal_line(node, status.get("deployment"), refusal)
        for node, refusal in (declined.items() if isinstance(declined, dict) else ())
    ]


def _awaited(document: Document) -> list[RenderableType]:
    """What an open place of an exclusive deployment waits for, each on a line."""
    lines: list[RenderableType] = []
    for place in entries(document, "awaited_places"):
        limit = place.get("for_ms")
        until = (
            Text(", whatever its silence")
            if limit is None
            else Text.assemble(", or was silent for another ", duration(limit))
        )
        told = f"a place waits until {word(place.get('node'))} says that {word(place.get('assignment'))} is gone"
        lines.append(Text.assemble(told, until, style="yellow"))
    return [Text(), *lines] if lines else []


def _changes(changes: list[dict[str, Any]]) -> RenderableType:
    if not changes:
        return Text("no replica would be started, restarted or stopped", style="dim")
    page = table("ACTION", "NODE", "REPLICA")
    for change in changes:
        action = word(change.get("action"))
        page.add_row(
            Text(action, style=_ACTIONS.get(action, "")),
            cell(change.get("node")),
            cell(change.get("assignment") or "a new one"),
        )
    return page


def _nodes(nodes: list[dict[str, Any]]) -> RenderableType:
    page = table("NODE", "ROOM FOR A NEW REPLICA")
    for node in nodes:
        reasons = node.get("reasons")
        listed = [word(reason) for reason in reasons] if isinstance(reasons, list) else []
        page.add_row(cell(node.get("node")), Text("; ".join(listed)) if listed else Text("yes", style="green"))
    return page


def _replicas(replicas: list[dict[str, Any]]) -> Table:
    page = table("REPLICA", "NODE", "STATE", "IDENTITY", "GENERATION", "RESTARTS", "NEW REQUESTS")
    for replica in replicas:
        reason = replica.get("not_routable")
        closed = Text("no" if reason is None else f"no: {word(reason)}", style="yellow")
        page.add_row(
            cell(replica.get("assignment")),
            cell(replica.get("node")),
            cell(replica.get("state")),
            cell(replica.get("identity")),
            cell(replica.get("generation")),
            cell(replica.get("restarts")),
            Text("yes", style="green") if replica.get("routable") else closed,
        )
    return page


def _replicas_of(status: dict[str, Any]) -> Text:
    serving = sum(replica.get("routable") is True for replica in entries(status, "replicas"))
    wanted = status.get("replicas_wanted")
    return Text(f"{serving} of {word(wanted)}", style="" if serving == wanted else "yellow")


def _serves(status: dict[str, Any]) -> Text:
    return Text("yes", style="green") if status.get("ready") else Text("no", style="yellow")


def _value(value: object) -> str:
    """A value of the specification, as it stands in JSON; long ones are cut."""
    text = word(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
