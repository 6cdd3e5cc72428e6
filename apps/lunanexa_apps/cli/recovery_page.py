"""A recovery as people read of it."""

from collections.abc import Mapping
from typing import Any, Final

from lunanexa_apps.cli.asking import entries
from lunanexa_apps.cli.cells import word
from lunanexa_apps.cli.tools import printable
from lunanexa_client import Document

_STEPS: Final = {
    "start_missing": "start   ",
    "stop_orphan": "stop    ",
    "expire_lease": "give up ",
    "mark_unreachable": "mark as unreachable",
}
_SHOWN: Final = 40


def recovery_page(document: Document) -> str:
    """All of it, with the next command."""
    if not document.get("recovering"):
        return "nothing is being recovered"
    told = document.get("plan")
    plan: Mapping[str, Any] = told if isinstance(told, dict) else {}
    lines = ["RECOVERING: nothing is served, and nothing changes but what nodes report", "", "why"]
    lines += [f"  {reason_line(reason)}" for reason in entries(document, "reasons")]
    lines += ["", "when you say go"]
    steps = entries(plan, "steps")
    lines += [f"  {_step_line(step)}" for step in steps[:_SHOWN]] or ["  nothing but going on"]
    total = sum(count for count in (plan.get("counts") or {}).values() if isinstance(count, int))
    if total > _SHOWN:
        lines.append(f"  and {total - min(_SHOWN, len(steps))} more (all of them: -o json)")
    waiting = plan.get("waiting") or ()
    if waiting:
        names = ", ".join(word(name) for name in waiting)
        lines += ["", f"not heard yet: {names}; better wait until they are, or are listed as unreachable"]
    lines += ["", "next:  lunanexa recovery rebase", "       or stop the controller and restore a newer backup"]
    return printable("\n".join(lines))


def reason_line(reason: Mapping[str, Any]) -> str:
    """Why, in a sentence."""
    match reason.get("cause"):
        case "restored":
            return f"the store was restored from a backup, up to row {word(reason.get('sequence'))}"
        case "rows_missing":
            return (
                f"row {word(reason.get('sequence'))} of epoch {word(reason.get('epoch'))} is missing, which this"
                " controller has seen: the store was set back"
            )
        case "node_ahead":
            return (
                f"node {word(reason.get('node'))} follows a document (epoch {word(reason.get('epoch'))}, generation"
                f" {word(reason.get('generation'))}) that the store does not know of"
            )
        case other:
            return word(other)


def _step_line(step: Mapping[str, Any]) -> str:
    kind, target, node = step.get("kind"), word(step.get("target")), step.get("node")
    doing = _STEPS.get(str(kind), word(kind))
    if kind == "mark_unreachable":
        return f"{doing} node {target}"
    what = {"start_missing": "replica", "stop_orphan": "replica", "expire_lease": "request"}.get(str(kind), "")
    if kind == "start_missing" and node is None:
        what = "replicas of deployment"
    return f"{doing} {what} {target}" + ("" if node is None else f" on node {word(node)}")
