"""Requests as pages for people: the list, and one request with its routing decision."""

from typing import Any

import attrs
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.text import Text

from lunanexa_apps.cli.asking import entries
from lunanexa_apps.cli.cells import WIDE, cell, cut_columns, duration, table, word


def requests_page(document: Any) -> Group:
    """Those in progress, then those that ended."""
    underway, ended = entries(document, "open"), entries(document, "ended")
    parts: list[RenderableType] = [UnderwayTable(underway) if underway else Text("nothing is in progress", style="dim")]
    if ended:
        parts += [Text(), EndedTable("ENDED", ended)]
    return Group(*parts)


@attrs.frozen
class EndedTable:
    """Receipts, one a line. The workload's name is whole on every screen, to be copied; a narrow one does without
    the times in between, which ``explain`` tells."""

    heading: str
    receipts: list[dict[str, Any]]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> list[RenderableType]:
        wide = options.max_width >= WIDE
        found = table(self.heading, "MODEL", "STATE", "TOKENS", *(("QUEUED", "FIRST OUTPUT") if wide else ()), "TOTAL")
        cut_columns(found, 1, 2)
        for receipt in self.receipts:
            between = (duration(receipt.get("queue_ms")), duration(receipt.get("first_output_ms"))) if wide else ()
            found.add_row(
                cell(receipt.get("workload")),
                cell(receipt.get("alias")),
                _ending(receipt, whole=wide),
                Text(f"{word(receipt.get('input_tokens'))} in, {word(receipt.get('output_tokens'))} out"),
                *between,
                duration(receipt.get("total_ms")),
            )
        return [found]


@attrs.frozen
class UnderwayTable:
    """Requests in progress, one a line; a narrow screen does without priority and deadline."""

    requests: list[dict[str, Any]]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> list[RenderableType]:
        wide = options.max_width >= WIDE
        found = table("IN PROGRESS", "MODEL", "STATE", "AGE", *(("PRIORITY", "DEADLINE") if wide else ()))
        cut_columns(found, 1, 2)
        for request in self.requests:
            state = cell(request.get("state"))
            if request.get("place") is not None:
                state.append(f" {request['place']} before it", style="dim")
            terms = (cell(request.get("priority")), duration(request.get("deadline_ms"))) if wide else ()
            found.add_row(
                cell(request.get("workload")),
                cell(request.get("alias")),
                state,
                duration(request.get("age_ms")),
                *terms,
            )
        return [found]


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
        first = ended.get("first_output_ms")
        output = "no output" if first is None else f"first output after {duration(first)}"
        parts.append(
            Text(
                f"{word(ended.get('input_tokens'))} tokens in, {word(ended.get('output_tokens'))} out"
                f"{' (estimated)' if ended.get('estimated') else ''}; {duration(ended.get('queue_ms'))} in the queue, "
                f"{output}, {duration(ended.get('total_ms'))} in all."
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


def _ending(receipt: dict[str, Any], *, whole: bool = True) -> Text:
    """The state, and why: with outcome and detail, or with one word."""
    state = cell(receipt.get("state"))
    reasons = [word(receipt[name]) for name in ("outcome", "detail") if receipt.get(name)]
    for reason in reasons if whole else reasons[:1]:
        state.append(f" {reason}", style="dim")
    return state


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
    found = table("REPLICA", "NODE", "VERDICT", "FREE", "RUNNING", "READ", "TIE-BREAK")
    found.columns[0].no_wrap = True
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
