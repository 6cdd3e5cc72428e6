"""Streams of events: any cut of the bytes gives the same events, limits hold, ends and errors are told apart."""

import itertools
import json
from collections.abc import AsyncIterator
from typing import Unpack

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from lunanexa_client import (
    CallOptions,
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    LunaNexaError,
    ProtocolError,
    RateLimited,
    StreamCut,
    StreamEvent,
)
from lunanexa_client.events import EventReader
from lunanexa_client.settings import Limits
from lunanexa_core.outcomes import Outcome, Refusal, error_document
from lunanexa_core.workload import Usage
from lunanexa_ports.http_client import HttpBroken, HttpUnreachable
from tests.apps.scripted_http import Reply
from tests.client.scripted import BODY, EVENTS, Script, answer, chunk, headers_of, refused, scripted, stream

DONE = b"data: [DONE]\n\n"
PIECES = [b"data: x", b"data:", b": ping", b"event: e", b"id", b"\n", b"\r\n", b"\r", b"\n\n", b"", b"\xff", b"{}"]
streams = st.lists(st.sampled_from(PIECES)).map(b"".join) | st.binary(max_size=60)


def read_all(pieces: list[bytes], limits: Limits) -> tuple[list[StreamEvent], bool]:
    reader, events = EventReader(limits), []
    for piece in pieces:
        found, problem = reader.feed(piece)
        events += found
        if problem is not None:
            return events, True
    return events, False


@given(streams, st.lists(st.integers(0, 1000), max_size=20), st.integers(1, 40), st.integers(1, 200))
def test_any_cut_gives_the_same_events_and_limits(
    data: bytes, places: list[int], event_bytes: int, stream_bytes: int
) -> None:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    cut = [data[start:end] for start, end in itertools.pairwise(edges)]
    limits = Limits(event_bytes=event_bytes, stream_bytes=stream_bytes)
    events, over = read_all(cut, limits)
    whole, whole_over = read_all([data], limits)
    assert over == whole_over
    assert all(len(event.data) <= event_bytes for event in events)
    if not over:
        assert events == whole
        assert len(data) <= stream_bytes


def test_names_and_comments() -> None:
    raw = b": ping\n\nevent: message_stop\ndata: {}\n\ndata: a\r\nevent:x\r\ndata: b\r\n\r\n"
    events, problem = EventReader(Limits()).feed(b"id: 7\n\n" + raw)
    assert problem is None
    assert events == [StreamEvent("message_stop", "{}"), StreamEvent("message", "a\nb")]


async def collect(script: Script, endpoint: str = "chat/completions") -> list[str]:
    async with script.client.stream(endpoint, BODY) as events:
        return [event.text async for event in events]


async def read_into(
    texts: list[str], script: Script, endpoint: str = "chat/completions", **options: Unpack[CallOptions]
) -> None:
    async with script.client.stream(endpoint, BODY, **options) as events:
        async for event in events:
            texts += [event.text]


async def test_a_stream() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
    script = scripted(stream(b": wait\n\n", chunk("Hal"), chunk("lo") + usage, DONE))
    async with script.client.stream("chat/completions", BODY) as events:
        texts = [event.text async for event in events]
        assert [event async for event in events] == []
    assert "".join(texts) == "Hallo"
    assert events.usage == Usage(input_tokens=3, output_tokens=2)
    (request,) = script.requests
    assert json.loads(request.body) == {**BODY, "stream": True}
    assert headers_of(request)["accept"] == "text/event-stream"


def named(name: str, document: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(document)}\n\n".encode()


async def test_a_workload_stream_has_a_key_and_its_own_body_and_end() -> None:
    output = named("output", {"error": {"message": "an engine's own"}})
    response = {"state": "Succeeded", "error": None, "usage": {"input": 1, "output": 2, "cached": 0}}
    script = scripted(stream(named("accepted", {}), output + b"data: [DONE]\n\n", named("completed", response)))
    async with script.client.stream_workload({"model": "tiny"}) as events:
        assert [event.name async for event in events] == ["accepted", "output", "message", "completed"]
        assert events.usage == Usage(input_tokens=1, output_tokens=2)
    (request,) = script.requests
    assert request.target == "/v1/workloads:stream"
    assert json.loads(request.body) == {"model": "tiny"}
    assert headers_of(request)["idempotency-key"] == "idem_1"


async def test_a_workload_that_fails_or_is_cut() -> None:
    error = {"code": "engine_failed", "message": "m"}
    document = {"workload_id": "wl_1", "state": "Failed", "error": error, "receipt": {"sequence": 5}}
    with pytest.raises(EngineFailed) as caught:
        async with scripted(stream(named("failed", document))).client.stream_workload({}) as events:
            await anext(events)
    assert caught.value.receipt is not None
    assert (caught.value.workload_id, caught.value.receipt.sequence) == ("wl_1", 5)
    assert caught.value.receipt.state == "Failed"
    with pytest.raises(StreamCut):
        async with scripted(stream(DONE)).client.stream_workload({}) as events:
            assert [event.data async for event in events] == ["[DONE]"]


@pytest.mark.parametrize(
    ("frame", "kind", "code"),
    [
        (error_document(Refusal(outcome=Outcome.ENGINE_FAILED, message="m"), "r"), EngineFailed, "engine_failed"),
        ({"error": {"code": 429, "message": "slow down"}}, RateLimited, ""),
        ({"error": {"message": "m", "type": "invalid_request_error"}}, InvalidRequest, ""),
    ],
)
async def test_an_error_event_is_raised(frame: object, kind: type[LunaNexaError], code: str) -> None:
    script = scripted(stream(chunk("a"), b"data: " + json.dumps(frame).encode() + b"\n\n", chunk("never")))
    texts: list[str] = []
    with pytest.raises(kind) as caught:
        await read_into(texts, script)
    assert texts == ["a"]
    assert caught.value.code == code


@pytest.mark.parametrize("pieces", [[chunk("a")], [chunk("a"), b"data: [DO"], []])
async def test_an_end_that_was_not_announced(pieces: list[bytes]) -> None:
    with pytest.raises(StreamCut):
        await collect(scripted(stream(*pieces)))


async def test_other_dialects_have_ends_of_their_own() -> None:
    events = stream(b"event: message_stop\ndata: {}\n\n")
    assert await collect(scripted(events), "messages") == [""]
    with pytest.raises(StreamCut):
        await collect(scripted(stream(b"event: message_stop\ndata: {}\n")), "messages")


@pytest.mark.parametrize(
    ("limits", "message"), [(Limits(event_bytes=80), "event is longer"), (Limits(stream_bytes=150), "stream is longer")]
)
async def test_limits(limits: Limits, message: str) -> None:
    texts: list[str] = []
    script = scripted(stream(chunk("a"), chunk("b" * 60), DONE), limits=limits)
    with pytest.raises(ProtocolError, match=message):
        await read_into(texts, script)
    assert texts == ["a"]


async def test_before_the_head_it_is_retried_and_after_it_never(autojump_clock: MockClock) -> None:
    script = scripted(HttpUnreachable("no"), refused(Outcome.STARTING), stream(chunk("a"), DONE))
    assert await collect(script) == ["a"]
    assert len(script.requests) == 3
    assert autojump_clock.current_time() > 0
    cut = scripted(stream(chunk("a")), stream(chunk("a"), DONE))
    with pytest.raises(StreamCut):
        await collect(cut)
    assert len(cut.requests) == 1


async def test_what_is_no_stream() -> None:
    with pytest.raises(ProtocolError, match="no stream"):
        await collect(scripted(answer({"choices": []}, content_type="application/json")))


class Broken(Reply):
    """Its body breaks after the pieces."""

    def chunks(self) -> AsyncIterator[bytes]:
        return Pieces(list(self.pieces))


class Hanging(Reply):
    """Its body never goes on after the pieces."""

    def chunks(self) -> AsyncIterator[bytes]:
        return Pieces(list(self.pieces), hangs=True)


class Pieces(AsyncIterator[bytes]):
    def __init__(self, pieces: list[bytes], *, hangs: bool = False) -> None:
        self._pieces = pieces
        self._hangs = hangs

    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()
        if self._pieces:
            return self._pieces.pop(0)
        if self._hangs:
            await trio.sleep_forever()
        raise HttpBroken("the body was cut", head_seen=True)


async def test_a_body_that_breaks() -> None:
    with pytest.raises(StreamCut, match="the body was cut"):
        await collect(scripted(Broken(200, [chunk("a")], EVENTS)))


async def test_the_deadline_of_a_stream(autojump_clock: MockClock) -> None:
    script = scripted(Hanging(200, [chunk("a")], EVENTS))
    texts: list[str] = []
    with pytest.raises(DeadlineExceeded):
        await read_into(texts, script, deadline_ms=500)
    assert texts == ["a"]
    assert autojump_clock.current_time() == pytest.approx(2.5)


async def test_an_end_without_the_bodys_own_end_waits_no_longer_than_a_moment(autojump_clock: MockClock) -> None:
    began = autojump_clock.current_time()
    assert await collect(scripted(Hanging(200, [chunk("a"), DONE], EVENTS))) == ["a"]
    assert autojump_clock.current_time() - began == pytest.approx(1.0)


async def test_a_cancelled_read_loses_nothing() -> None:
    script = scripted(stream(chunk("a"), chunk("b"), DONE))
    async with script.client.stream("chat/completions", BODY) as events:
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(events)
        assert [event.text async for event in events] == ["a", "b"]
