"""What a look at a node found, one step after another, for people and programs."""

import enum
from collections.abc import Sequence

import attrs

from lunanexa_core.canonical import JsonValue


class Verdict(enum.Enum):
    OK = "ok"
    NOTE = "note"
    """Known, and no fault by itself."""
    PROBLEM = "problem"


@attrs.frozen(kw_only=True)
class Finding:
    """One step: what was found there, and what to do where that is not well."""

    step: str
    verdict: Verdict = Verdict.OK
    found: str
    fix: str | None = None


def problem(step: str, found: str, fix: str) -> Finding:
    return Finding(step=step, verdict=Verdict.PROBLEM, found=found, fix=fix)


def note(step: str, found: str, fix: str | None = None) -> Finding:
    return Finding(step=step, verdict=Verdict.NOTE, found=found, fix=fix)


def any_problem(findings: Sequence[Finding]) -> bool:
    return any(one.verdict is Verdict.PROBLEM for one in findings)


def document_of(findings: Sequence[Finding]) -> JsonValue:
    """The same as JSON."""
    steps: list[JsonValue] = [
        {"step": one.step, "verdict": one.verdict.value, "found": one.found, "fix": one.fix} for one in findings
    ]
    return {"ok": not any_problem(findings), "steps": steps}
