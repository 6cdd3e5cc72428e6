"""What may be told to a caller who asks for the right thing with the right key, whatever happens to the fleet."""

from collections.abc import Mapping
from typing import Any, Final

from lunanexa_core.outcomes import Outcome
from lunanexa_simulation.client import Answer, Ending, Oracle

REFUSALS: Final[Mapping[str, int]] = {
    outcome.value: outcome.row.http_status
    for outcome in (
        Outcome.STARTING,
        Outcome.NO_CAPACITY,
        Outcome.NO_PLACEMENT,
        Outcome.NOT_LEADER,
        Outcome.STORE_UNAVAILABLE,
        Outcome.RECEIPT_UNAVAILABLE,
        Outcome.RATE_LIMITED,
        Outcome.QUEUE_FULL,
        Outcome.DEADLINE_UNREACHABLE,
        Outcome.ENGINE_FAILED,
        Outcome.DEADLINE_EXCEEDED,
    )
}
"""All that a caller may be told, with its status."""
AGAIN: Final[Mapping[str, int]] = {
    outcome.value: outcome.row.http_status
    for outcome in (Outcome.WORKLOAD_ACTIVE, Outcome.IDEMPOTENCY_OUTPUT_GONE, Outcome.RETENTION_UNAVAILABLE)
}
"""And what one may be told who repeats themselves."""


def broken_promise(oracle: Oracle, body: Mapping[str, Any], answer: Answer, *, again: bool = False) -> str | None:
    """The promise that an answer breaks. ``again``: it is to somebody who repeats themselves."""
    honest = {**REFUSALS, **AGAIN} if again else REFUSALS
    if oracle.fault(body, answer) is not None:
        return "what came is the engine's answer or its beginning"
    match answer.ending:
        case Ending.REFUSED:
            status = honest.get(answer.error or "")
            if answer.status != status:
                return "a refusal is one that may be told"
            if answer.retry_after_s is None and status in (429, 503):
                return "a refusal says when to come again"
        case Ending.ERROR_FRAME:
            if answer.error not in honest:
                return "an error frame is one that may be told"
        case Ending.WHOLE | Ending.CUT | Ending.UNREACHABLE:
            pass
    return None


def word_of(answer: Answer) -> str:
    """By which answers of a kind are counted."""
    told = f" {answer.error}" if answer.error else " again" if answer.replayed else ""
    return f"answer {answer.ending.value.replace('_', ' ')}{told}"
