"""Requests as pages for people: the list, and one request with its routing decision."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lunanexa_apps.cli.asking import entries
from lunanexa_apps.cli.cells import cell, cut_columns, duration, table, word


def requests_page(document: Any) -> Group:
    """Those in progress, then those that ended."""
    underway, ended = entries(document, "open"), entries(document, "ended")
    parts: list[RenderableType] = [_underway(underway) if underway else Text("nothing is in progress", style="dim")]
    if ended:
        parts += [Text(), ended_table("ENDED", ended)]
    return Group(*parts)


def ended_table(heading: str, receipts: list[dict[str, Any]]) -> Table:
    """Receipts, one a line."""
    found = table(heading, "MODEL", "STATE", "TOKENS", "QUEUED", "FIRST OUTPUT", "TOTAL")
    cut_columns(found, from_position=3)
    for receipt in receipts:
        found.add_row(
            cell(receipt.get("workload")),
            cell(receipt.get("alias")),
            _ending(receipt),
            Text(f"{word(receipt.get('input_tokens'))} in, {word(receipt.get('output_tokens'))} out"),
            duration(receipt.get("queue_ms")),
            duration(receipt.get("first_output_ms")),
            duration(receipt.get("total_ms")),
        )
    return found


def explanation_page(document: Any) -> Group:
    """The request, its end as far as it is known, its attempts and the decision."""
    document = document if isinstance(document, dict) else {}
    underway, ended, decision = (document.get(name) for name in ("open", "ended", "decision"))
    parts: list[RenderableType] = []
    if isinstance(underway, dict):
        parts.append(_headline(underway, cell(underway.get("state"))))
        place = underway.get("place")
        waits = "" if place is None else f", {place} before it in the queue"
        age, budget = duration(underway.get("age_ms")), duration(underway.get("deadline_ms"))
        parts.append(Text(f"In progress for {age} of {budget}{waits}."))
    if isinstance(ended, dict):
        parts.append(_headline(ended, _ending(ended)))
        parts.append(
            Text(
                f"{word(ended.get('input_tokens'))} tokens in, {word(ended.get('output_tokens'))} out"
                f"{' (estimated)' if ended.get('estimated') else ''}; {duration(ended.get('queue_ms'))} in the queue, "
                f"first output after {duration(ended.get('first_output_ms'))}, "
                f"{duration(ended.get('total_ms'))} in all."
            )
        )
        parts += _attempts(entries(ended, "attempts"))
    parts.append(Text())
    parts += _decision(decision) if isinstance(decision, dict) else [_undecided(underway)]
    return Group(*parts)


def _headline(request: dict[str, Any], state: Text) -> Text:
    line = Text.assemble((word(request.get("workload")), "bold"), "  ", state)
    line.append(f"  {word(request.get('alias'))} by {word(request.get('dialect'))}")
    line.append(f"  key {word(request.get('key'))}, request {word(request.get('request'))}", "dim")
    return line


def _ending(receipt: dict[str, Any]) -> Text:
    state = cell(receipt.get("state"))
    for name in ("outcome", "detail"):
        if receipt.get(name):
            state.append(f" {word(receipt[name])}", style="dim")
    return state


def _underway(requests: list[dict[str, Any]]) -> Table:
    found = table("IN PROGRESS", "MODEL", "STATE", "PRIORITY", "AGE", "DEADLINE")
    cut_columns(found, from_position=3)
    for request in requests:
        state = cell(request.get("state"))
        if request.get("place") is not None:
            state.append(f" {request['place']} before it", style="dim")
        found.add_row(
            cell(request.get("workload")),
            cell(request.get("alias")),
            state,
            cell(request.get("priority")),
            duration(request.get("age_ms")),
            duration(request.get("deadline_ms")),
        )
    return found


def _attempts(attempts: list[dict[str, Any]]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for number, attempt in enumerate(attempts, 1):
        status = "" if attempt.get("status") is None else f", status {attempt['status']}"
        failure = attempt.get("failure")
        told = Text(f"  attempt {number} on {word(attempt.get('start'))}{status}: ")
        told.append(*("answered", "green") if failure is None else (word(failure), "yellow"))
        lines.append(told)
    return lines


def _undecided(underway: object) -> Text:
    if isinstance(underway, dict):
        return Text("No replica has been chosen yet.", style="dim")
    return Text("Its routing decision is not kept any more, or none was made.", style="dim")


def _decision(decision: dict[str, Any]) -> list[RenderableType]:
    candidates = entries(decision, "candidates")
    waiting = decision.get("waiting")
    lead = Text(
        f"Decided after {duration(decision.get('queued_ms'))} in the queue, in band {word(decision.get('band'))}"
    )
    lead.append(f", with {waiting} waiting. " if isinstance(waiting, int) and waiting > 1 else ", alone in it. ")
    lead.append("The most free slots win, then the tie-break.", style="dim")
    found = table("REPLICA", "NODE", "VERDICT", "FREE SLOTS", "RUNNING THERE", "READ", "TIE-BREAK")
    for candidate in candidates:
        chosen = candidate.get("start") == decision.get("chosen")
        verdict = Text("chosen", "green") if chosen else Text(word(candidate.get("refused") or "outranked"), "yellow")
        found.add_row(
            cell(candidate.get("start")),
            cell(candidate.get("node")),
            verdict,
            Text(f"{word(candidate.get('free_slots'))} of {word(candidate.get('slots'))}"),
            cell(candidate.get("running")),
            duration(candidate.get("reading_age_ms"), " before"),
            Text(_short(candidate.get("tie_break"))),
        )
    return [lead, Text(), found]


def _short(tie_break: object) -> str:
    """The first digits are enough to see which is higher."""
    return f"{tie_break / 2**53:.4f}" if isinstance(tie_break, int) else "-"
