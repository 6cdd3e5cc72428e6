"""What commands print for people."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lunanexa_apps.cli.cells import cell, table, word
from lunanexa_apps.node.findings import Finding, Verdict
from lunanexa_apps.node.once import Round

_STYLES: Final = {Verdict.OK: "green", Verdict.NOTE: "yellow", Verdict.PROBLEM: "bold red"}


def findings_page(findings: Sequence[Finding]) -> Table:
    """A line a step, and below it what mends it."""
    found = table("", "STEP", "FOUND")
    for one in findings:
        found.add_row(Text(one.verdict.value, style=_STYLES[one.verdict]), Text(one.step), Text(word(one.found)))
        if one.fix is not None and one.verdict is not Verdict.OK:
            found.add_row(Text(), Text(), Text(f"next: {word(one.fix)}", style="bold"))
    return found


def round_page(done: Round) -> Group:
    """What one round found and left."""
    parts: list[RenderableType] = []
    if done.refusal is not None:
        parts.append(Text(f"the controller refuses: {word(done.refusal)}", style="bold red"))
    order = "none yet" if done.order is None else f"epoch {done.order[0]}, generation {done.order[1]}"
    parts.append(Text(f"document: {order}"))
    if done.document_refusal is not None:
        parts.append(Text(f"a newer one is not followed: {done.document_refusal.value}", style="red"))
    parts += [Text(f"{one.assignment}: not followed: {one.refusal}", style="red") for one in done.refused]
    if done.replicas:
        replicas = table("ASSIGNMENT", "GENERATION", "STATE", "START", "ADDRESS")
        for one in done.replicas:
            address = "-" if one.host is None else f"{one.host}:{one.port}"
            state = cell(one.state.value)
            replicas.add_row(one.assignment, str(one.generation), state, one.start, Text(address))
        parts.append(replicas)
    if done.unattended:
        warning = "an engine here must end with the lease, and only an agent ends it: lunanexa-node run"
        parts.append(Text(warning, style="bold red"))
    parts.append(Text("nothing is left to do" if done.settled else "not all was done within the time"))
    return Group(*parts)
