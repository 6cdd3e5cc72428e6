"""A call, read and checked before anything is admitted: the body's head, and the terms with their defaults."""

import hashlib
from typing import Final

import attrs

from lunanexa_apps.controller.gateway.envelope import Payload, read_envelope
from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_core.ids import Alias, RequestId, SessionId, WorkloadId
from lunanexa_core.keys import secret_digest
from lunanexa_core.openai.head import RequestHead
from lunanexa_core.openai.request import peek_request
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.terms import RetainFor, Terms
from lunanexa_core.workload import WorkloadRequest
from lunanexa_ports.gateway import InferenceCall, WorkloadCall
from lunanexa_ports.workers import Workers

NO_KEY: Final = Refusal(
    outcome=Outcome.INVALID_API_KEY,
    message="No API key was given. Send it as 'Authorization: Bearer KEY'.",
)
ENVELOPE_ROUTE: Final = "workloads"


@attrs.frozen(kw_only=True)
class Asking:
    """What a call asks for. ``body`` is for an engine, in the dialect of ``head``; ``body_digest`` and ``binding``
    are of the bytes that came: ``binding`` of route, content type and data class too."""

    head: RequestHead
    body: bytes
    body_digest: str
    binding: str
    api_key: str
    terms: Terms
    deadline_ms: int

    def request(
        self, workload: WorkloadId, request: RequestId, session: SessionId, *, reserved_tokens: int
    ) -> WorkloadRequest:
        """What admission reads of it."""
        terms, key = self.terms, self.terms.idempotency_key
        retention = terms.data.retention
        return WorkloadRequest(
            workload=workload,
            request=request,
            session=session,
            key_digest=secret_digest(self.api_key),
            alias=Alias(self.head.model),
            dialect=self.head.dialect,
            stream=self.head.stream,
            body_digest=self.body_digest,
            body_bytes=len(self.body),
            reserved_tokens=reserved_tokens,
            priority=terms.priority,
            deadline_ms=self.deadline_ms,
            tenant=terms.tenant,
            classification=terms.data.classification,
            retain_ms=retention.ms if isinstance(retention, RetainFor) else None,
            idempotency=None if key is None else hashlib.sha256(key.encode()).hexdigest(),
            binding=None if key is None else self.binding,
        )


async def read_call(
    call: InferenceCall | WorkloadCall, settings: GatewaySettings, workers: Workers
) -> Asking | Refusal:
    """Reads a call; the first fault found is the refusal."""
    if call.api_key is None:
        return NO_KEY
    if len(call.body) > settings.offload_bytes:
        return await workers.run(lambda: _read(call, call.api_key or "", settings))
    return _read(call, call.api_key, settings)


def _read(call: InferenceCall | WorkloadCall, api_key: str, settings: GatewaySettings) -> Asking | Refusal:
    if isinstance(call, WorkloadCall):
        # The answer to one is none to the other.
        route, content_type = f"{ENVELOPE_ROUTE}{':stream' if call.stream else ''}", "application/json"
        payload = read_envelope(call.body, call.terms, stream=call.stream)
    else:
        route, content_type = call.dialect.value, call.content_type
        payload = Payload(dialect=call.dialect, body=call.body, terms=call.terms)
    if isinstance(payload, Refusal):
        return payload
    head = peek_request(payload.dialect, payload.body, content_type)
    if isinstance(head, Refusal):
        return head
    terms = payload.terms
    units = terms.ceiling.output_units
    if units is not None and head.choices * (head.max_tokens or 0) > units:
        return Refusal(
            outcome=Outcome.INVALID_REQUEST,
            message=f"{head.choices} answers of {head.max_tokens} units are more than resource_ceiling.output_units.",
            param="resource_ceiling.output_units",
        )
    digest = hashlib.sha256(call.body).hexdigest()
    asked_ms = settings.deadline_ms if terms.deadline_ms is None else terms.deadline_ms
    return Asking(
        head=head,
        body=payload.body,
        body_digest="sha256:" + digest,
        # The class too: a key that may not send such data may not have its answer either.
        binding=_digest(route, content_type, terms.data.classification.value, digest),
        api_key=api_key,
        terms=terms,
        deadline_ms=min(asked_ms, settings.deadline_max_ms),
    )


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
