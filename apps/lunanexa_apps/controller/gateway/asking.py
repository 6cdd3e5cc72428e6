"""A call, read and checked before anything is admitted: the body's head, the deadline, the priority."""

import hashlib
from collections.abc import Mapping
from typing import Final

import attrs

from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_core.openai.request import RequestHead, peek_request
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.workload import Priority
from lunanexa_ports.gateway import InferenceCall
from lunanexa_ports.workers import Workers

DEADLINE_HEADER: Final = "x-lunanexa-deadline-ms"
PRIORITY_HEADER: Final = "x-lunanexa-priority"
NO_KEY: Final = Refusal(
    outcome=Outcome.INVALID_API_KEY,
    message="No API key was given. Send it as 'Authorization: Bearer KEY'.",
)
_PRIORITIES: Final = {priority.value.lower(): priority for priority in Priority}
_DEADLINE_DIGITS: Final = 12


@attrs.frozen(kw_only=True)
class Asking:
    """What a call asks for."""

    head: RequestHead
    body_digest: str
    api_key: str
    deadline_ms: int
    priority: Priority


async def read_call(call: InferenceCall, settings: GatewaySettings, workers: Workers) -> Asking | Refusal:
    """Reads a call; the first fault found is the refusal."""
    if call.api_key is None:
        return NO_KEY
    deadline_ms = _deadline_ms(call.headers, settings)
    if isinstance(deadline_ms, Refusal):
        return deadline_ms
    priority = _priority(call.headers)
    if isinstance(priority, Refusal):
        return priority
    if len(call.body) > settings.offload_bytes:
        head, digest = await workers.run(lambda: _read_body(call))
    else:
        head, digest = _read_body(call)
    if isinstance(head, Refusal):
        return head
    return Asking(head=head, body_digest=digest, api_key=call.api_key, deadline_ms=deadline_ms, priority=priority)


def _read_body(call: InferenceCall) -> tuple[RequestHead | Refusal, str]:
    head = peek_request(call.dialect, call.body)
    return head, "" if isinstance(head, Refusal) else "sha256:" + hashlib.sha256(call.body).hexdigest()


def _deadline_ms(headers: Mapping[str, str], settings: GatewaySettings) -> int | Refusal:
    text = headers.get(DEADLINE_HEADER)
    if text is None:
        return settings.deadline_ms
    if text.isascii() and text.isdigit() and len(text) <= _DEADLINE_DIGITS and int(text) > 0:
        return min(int(text), settings.deadline_max_ms)
    return _invalid(DEADLINE_HEADER, "must be a positive number of milliseconds")


def _priority(headers: Mapping[str, str]) -> Priority | Refusal:
    text = headers.get(PRIORITY_HEADER)
    if text is None:
        return Priority.NORMAL
    return _PRIORITIES.get(text.lower()) or _invalid(
        PRIORITY_HEADER, f"must be one of {', '.join(priority.value for priority in Priority)}"
    )


def _invalid(header: str, what: str) -> Refusal:
    return Refusal(outcome=Outcome.INVALID_REQUEST, message=f"The header {header} {what}.", param=header)
