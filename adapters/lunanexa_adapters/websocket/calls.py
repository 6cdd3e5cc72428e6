"""A ``submit`` frame as a call of the gateway."""

import json
from typing import Any, Final

import attrs

from lunanexa_core.contract.envelope import Capability
from lunanexa_core.contract.frames import Submit
from lunanexa_core.ids import RequestId
from lunanexa_core.openai.request_rules import request_rules
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.terms import Terms
from lunanexa_core.workload import Dialect
from lunanexa_ports.gateway import InferenceCall, WorkloadCall

_ENDPOINTS: Final = {dialect.value: dialect for dialect in Dialect if not request_rules(dialect).form}
"""Those whose body is JSON."""


@attrs.frozen(kw_only=True)
class Caller:
    """Who speaks on a connection: the key, and the terms that the handshake's headers state for all its workloads."""

    api_key: str = attrs.field(repr=False)
    key_digest: str
    terms: Terms


def call_of(
    frame: Submit, caller: Caller, request: RequestId, received_mono_ms: int
) -> WorkloadCall | InferenceCall | Refusal:
    """A dialect's ``stream`` decides between events and one ``completed``. An envelope is answered with events
    where its capability has any, unless its payload says ``"stream": false``."""
    dialect = None if frame.endpoint is None else _ENDPOINTS.get(frame.endpoint)
    if frame.endpoint is not None and dialect is None:
        return Refusal(
            outcome=Outcome.UNSUPPORTED_ENDPOINT,
            message=f"endpoint: is not served here; it is one of {', '.join(_ENDPOINTS)}, or left out for an envelope.",
            param="endpoint",
        )
    body = _encoded(frame.request)
    if body is None:
        return Refusal(
            outcome=Outcome.INVALID_REQUEST, message="request: holds a number that JSON does not have.", param="request"
        )
    if dialect is not None:
        return InferenceCall(
            request=request,
            dialect=dialect,
            api_key=caller.api_key,
            terms=caller.terms,
            body=body,
            received_mono_ms=received_mono_ms,
        )
    return WorkloadCall(
        request=request,
        api_key=caller.api_key,
        terms=caller.terms,
        body=body,
        stream=_streams(frame.request),
        received_mono_ms=received_mono_ms,
    )


def _streams(envelope: dict[str, Any]) -> bool:
    payload = envelope.get("payload")
    asked = payload.get("stream", True) if isinstance(payload, dict) else True
    return envelope.get("capability") == Capability.TEXT_GENERATE.value and asked is not False


def _encoded(request: dict[str, Any]) -> bytes | None:
    try:
        text = json.dumps(request, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which came as an escape and can only go as one
        return json.dumps(request, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return None
