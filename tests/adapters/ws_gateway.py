"""A gateway without engines: what a workload says is in its request, and its output is made at once."""

import json
from typing import Any

import trio

from lunanexa_core.canonical import JsonValue
from lunanexa_core.contract.response import Output, WorkloadResponse
from lunanexa_core.ids import WorkloadId
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_ports.dispatch import ModelCard
from lunanexa_ports.gateway import (
    Accepted,
    InferenceCall,
    InferenceGateway,
    ResponseSink,
    WorkloadCall,
    WorkloadSink,
)
from lunanexa_ports.workloads import WorkloadPlane

GOOD_KEY = "lnx_good"
NO = Refusal(outcome=Outcome.INVALID_API_KEY, message="The key is not in force.")


class ScriptedGateway(InferenceGateway):
    """``{"events": n, "pad": bytes, "wait": true}``: n events of about so many bytes, then the end or a long wait."""

    def __init__(self) -> None:
        self.running = 0

    async def authenticate(self, api_key: str | None) -> Refusal | None:
        return None if api_key == GOOD_KEY else NO

    async def infer(self, call: InferenceCall, sink: ResponseSink) -> None:
        raise AssertionError

    async def models(self, api_key: str | None) -> tuple[ModelCard, ...] | Refusal:
        raise AssertionError

    async def submit(self, call: WorkloadCall | InferenceCall, sink: WorkloadSink) -> None:
        self.running += 1
        try:
            await self._serve(call, json.loads(call.body), sink)
        finally:
            self.running -= 1

    async def _serve(self, call: WorkloadCall | InferenceCall, asked: Any, sink: WorkloadSink) -> None:
        workload = WorkloadId(f"wl-{call.request}")
        count, pad = asked.get("events", 0), asked.get("pad", 0)
        if not isinstance(count, int) or not isinstance(pad, int):
            await sink.failed(Refusal(outcome=Outcome.INVALID_REQUEST, message="events", param="events"), None)
            return
        await sink.accepted(Accepted(workload=workload, place=0))
        for number in range(count):
            await sink.event(json.dumps({"n": number, "pad": "x" * pad}).encode())
        if asked.get("wait"):
            await trio.sleep_forever()
        await sink.completed(
            WorkloadResponse(
                workload=workload,
                request=call.request,
                output=Output(content_type="application/json", body=b'{"done":true}'),
                error=None,
                receipt=None,
            )
        )


class NoWorkloads(WorkloadPlane):
    """Knows of none."""

    async def workload(self, api_key: str | None, workload: str) -> JsonValue | Refusal:
        raise AssertionError

    async def workloads(self, api_key: str | None, limit: int, cursor: str | None) -> JsonValue | Refusal:
        raise AssertionError

    async def cancel(self, api_key: str | None, workload: str) -> JsonValue | Refusal:
        return Refusal(outcome=Outcome.NOT_FOUND, message="There is no such workload.")

    async def capabilities(self, api_key: str | None) -> JsonValue | Refusal:
        raise AssertionError
