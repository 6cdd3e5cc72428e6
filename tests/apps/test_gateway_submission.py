"""Canonical workloads through the real gateway and kernel: frames, one response, one receipt."""

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from lunanexa_apps.codec import structure
from lunanexa_core.contract.response import ResponseDocument, WorkloadResponse, response_json
from lunanexa_core.ids import RequestId, WorkloadId
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.terms import Terms
from lunanexa_core.workload import WorkloadState
from lunanexa_ports.gateway import Accepted, InferenceCall, WorkloadCall, WorkloadSink
from tests.apps.engine_driver import engine
from tests.apps.gateway_fleet import Fleet, Part, Script, ScriptedEngine, fleet
from tests.core.builders import SECRET

CHAT = {"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 5}
ENVELOPE = {"capability": "TextGenerate", "model": "tiny", "payload": CHAT}


class Frames(WorkloadSink):
    """Keeps what it is told, and that the order is right."""

    def __init__(self) -> None:
        self.accepted_as: Accepted | None = None
        self.events: list[Any] = []
        self.silences = 0
        self.response: WorkloadResponse | None = None
        self.refusal: Refusal | None = None
        self.ended = False

    @property
    def closed_because(self) -> str | None:
        return None

    async def accepted(self, accepted: Accepted) -> None:
        await trio.lowlevel.checkpoint()
        assert self.accepted_as is None
        assert not self.ended
        self.accepted_as = accepted

    async def event(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        assert self.accepted_as is not None
        assert not self.ended
        self.events.append(json.loads(data))

    async def silence(self) -> None:
        await trio.lowlevel.checkpoint()
        assert not self.ended
        self.silences += 1

    async def completed(self, response: WorkloadResponse) -> None:
        await trio.lowlevel.checkpoint()
        assert self.accepted_as is not None
        assert not self.ended
        self.ended, self.response = True, response

    async def failed(self, refusal: Refusal, response: WorkloadResponse | None) -> None:
        await trio.lowlevel.checkpoint()
        assert not self.ended
        self.ended, self.refusal, self.response = True, refusal, response

    @property
    def document(self) -> ResponseDocument:
        assert self.response is not None
        return structure(ResponseDocument, json.loads(response_json(self.response)), closed=True)

    @property
    def text(self) -> str:
        deltas = [choice["delta"] for event in self.events for choice in event["choices"]]
        return "".join(delta.get("content") or "" for delta in deltas)


async def submit(world: Fleet, envelope: dict[str, Any], *, stream: bool = False, key: str = SECRET) -> Frames:
    frames = Frames()
    call = WorkloadCall(
        request=RequestId("req_1"),
        api_key=key,
        terms=Terms(),
        body=json.dumps(envelope).encode(),
        stream=stream,
        received_mono_ms=world.clock.now().mono_ms,
    )
    await world.gateway.submit(call, frames)
    assert frames.ended
    return frames


async def test_a_unary_workload_brings_the_engines_answer_and_its_receipt(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, engine(names=("tiny",))) as world:
        frames = await submit(world, {**ENVELOPE, "workload_id": "order-17"})
        document = frames.document
        assert frames.accepted_as == Accepted(workload=WorkloadId("order-17"), place=0)
        assert (document.workload_id, document.state, document.error) == ("order-17", WorkloadState.SUCCEEDED, None)
        assert document.output["choices"][0]["message"]["content"]
        assert document.usage is not None
        assert document.usage.output == document.output["usage"]["completion_tokens"] == 5
        assert document.receipt is not None
        assert document.receipt.sequence == world.kernel.head.sequence
        assert document.receipt.hash == world.kernel.head.ledger
        assert world.receipt().workload == "order-17"
        assert world.at_rest()


async def test_a_streamed_workload_brings_events_and_no_output_at_the_end(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, engine(names=("tiny",))) as world:
        whole = await submit(world, ENVELOPE)
        frames = await submit(world, ENVELOPE, stream=True)
        assert frames.text == whole.document.output["choices"][0]["message"]["content"]
        assert frames.document.output is None
        assert frames.document.state is WorkloadState.SUCCEEDED
        assert frames.document.usage == whole.document.usage
        assert not any("usage" in event and not event["choices"] for event in frames.events)


async def test_a_dialect_call_is_answered_in_frames_too(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, engine(names=("tiny",))) as world:
        frames = Frames()
        call: InferenceCall = world.call({**CHAT, "model": "tiny", "stream": True})
        await world.gateway.submit(call, frames)
        assert frames.text == (await submit(world, ENVELOPE)).document.output["choices"][0]["message"]["content"]
        assert frames.document.state is WorkloadState.SUCCEEDED


async def test_what_is_refused_before_admission_has_no_response(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, engine(names=("tiny",))) as world:
        for envelope, outcome in (
            ({**ENVELOPE, "capability": "ImageGenerate"}, Outcome.UNSUPPORTED_ENDPOINT),
            ({**ENVELOPE, "model": "none"}, Outcome.MODEL_NOT_FOUND),
            ({**ENVELOPE, "prioritty": "Normal"}, Outcome.INVALID_REQUEST),
        ):
            frames = await submit(world, envelope)
            assert frames.refusal is not None
            assert (frames.refusal.outcome, frames.response, frames.accepted_as) == (outcome, None, None)
        assert not world.receipts()


async def test_the_engines_own_refusal_fails_the_workload_and_is_shown(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, engine(names=("tiny",))) as world:
        for stream in (False, True):
            frames = await submit(world, {**ENVELOPE, "payload": {**CHAT, "temperature": 99}}, stream=stream)
            document = frames.document
            assert (document.state, frames.events) == (WorkloadState.FAILED, [])
            assert document.error is not None
            assert document.error.code is Outcome.INVALID_REQUEST
            assert "temperature" in document.output["error"]["message"]
            assert document.receipt is not None


async def test_ceilings_hold(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, engine(names=("tiny",))) as world:
        payload = {"messages": CHAT["messages"]}
        frames = await submit(world, {**ENVELOPE, "payload": payload, "resource_ceiling": {"output_units": 3}})
        assert frames.document.usage is not None
        assert frames.document.usage.output == 3
        frames = await submit(world, {**ENVELOPE, "resource_ceiling": {"output_units": 3}})
        assert frames.refusal is not None
        assert frames.refusal.param == "payload.max_tokens"
        frames = await submit(world, {**ENVELOPE, "resource_ceiling": {"input_units": 3}})
        assert frames.refusal is not None
        assert frames.refusal.param == "resource_ceiling.input_units"


async def test_a_workload_ends_at_its_ceiling_on_the_time_that_it_runs(autojump_clock: MockClock) -> None:
    begun = Part(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')
    slow = Script(parts=(begun, Part(b"data: {}\n\n", wait_s=500)))
    for stream in (False, True):
        async with fleet(autojump_clock, ScriptedEngine(slow)) as world:
            began_s = trio.current_time()
            frames = await submit(world, {**ENVELOPE, "resource_ceiling": {"runtime_ms": 7_000}}, stream=stream)
            assert trio.current_time() - began_s == pytest.approx(7)
            assert frames.refusal is not None
            assert frames.refusal.outcome is Outcome.DEADLINE_EXCEEDED
            assert "runtime_ms" in frames.refusal.message
            assert frames.document.receipt is not None
            assert world.at_rest()
