"""Streams whose events have names: responses, messages and sound. What is whole, what is booked, how it breaks."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.openai.answer_rules import answer_rules
from lunanexa_core.openai.audio import SpeechReader, TranscriptReader
from lunanexa_core.openai.messages import MessagesReader
from lunanexa_core.openai.response import usage_from, usage_of
from lunanexa_core.openai.responses import ResponsesReader
from lunanexa_core.openai.stream import AnswerReader, EventKind, data_frame
from lunanexa_core.openai.typed import named_frame
from lunanexa_core.sse import SseSplitter, data_of
from lunanexa_core.workload import Dialect, Usage

DONE = b"data: [DONE]\n\n"
GOLDEN = Path(__file__).parent / "golden" / "openai"
TYPED = (Dialect.RESPONSES, Dialect.MESSAGES, Dialect.AUDIO_SPEECH, Dialect.AUDIO_TRANSCRIPTIONS)


def event(kind: str, **members: Any) -> bytes:
    return named_frame(kind, members)


RESPONSE_USAGE = {
    "input_tokens": 9,
    "output_tokens": 2,
    "total_tokens": 11,
    "input_tokens_details": {"cached_tokens": 4},
}


def response(status: str = "completed", **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": "Hi you", "annotations": []}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}
    return {"id": "resp_1", "object": "response", "status": status, "output": [message], "error": None, **more}


RESPONSES = [
    event("response.created", response=response("in_progress", output=[])),
    event("response.output_item.added", output_index=0, item={}),
    event("response.output_text.delta", delta="Hi", sequence_number=2),
    event("response.output_text.delta", delta=" you", sequence_number=3),
    event("response.output_text.done", text="Hi you"),
    event("response.completed", response=response(usage=RESPONSE_USAGE), sequence_number=5),
]
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": [],
    "model": "m",
    "stop_reason": None,
}
MESSAGES = [
    event("message_start", message={**MESSAGE, "usage": {"input_tokens": 5, "cache_read_input_tokens": 4}}),
    event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    event("ping"),
    event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"}),
    event("content_block_delta", index=0, delta={"type": "text_delta", "text": " you"}),
    event("content_block_stop", index=0),
    event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 2}),
    event("message_stop"),
]
SPEECH = [
    event("speech.audio.delta", audio="AAAA"),
    event("speech.audio.done", usage={"input_tokens": 3, "output_tokens": 8, "total_tokens": 11}),
]
TRANSCRIPT = [
    event("transcript.text.delta", delta="Hi"),
    event("transcript.text.done", text="Hi", usage={"type": "tokens", "input_tokens": 20, "output_tokens": 1}),
]


def recorded(dialect: Dialect) -> list[bytes]:
    splitter = SseSplitter(1 << 20)
    events = splitter.feed((GOLDEN / f"llama-server.{dialect.value}_stream.sse").read_bytes())
    assert splitter.rest() == b""
    return events


@pytest.mark.parametrize(
    ("dialect", "usage", "told"),
    [
        (
            Dialect.RESPONSES,
            Usage(input_tokens=26, output_tokens=3),
            "output output output output output output output output output output finish",
        ),
        (
            Dialect.MESSAGES,
            Usage(input_tokens=26, output_tokens=3, cached_tokens=21),
            "output output output output output output finish done",
        ),
    ],
)
def test_a_recorded_stream_of_llama_server_is_understood(dialect: Dialect, usage: Usage, told: str) -> None:
    reader = reader_of(dialect)
    assert kinds(reader, recorded(dialect)) == told
    assert (reader.whole, reader.usage, reader.outputs, reader.closing()) == (True, usage, 3, b"")
    answer = put_together(dialect, recorded(dialect))
    assert usage_of(json.dumps(answer).encode()) == usage
    parts = answer["output"][0]["content"] if dialect is Dialect.RESPONSES else answer["content"]
    assert [part["text"] for part in parts] == ["Say hi<"]
    if dialect is Dialect.MESSAGES:
        # What it answers to the same question without a stream, but for its id.
        assert answer == {
            "id": answer["id"], "type": "message", "role": "assistant", "model": "gemma",
            "content": [{"type": "text", "text": "Say hi<"}], "stop_reason": "max_tokens", "stop_sequence": None,
            "usage": {"cache_read_input_tokens": 21, "input_tokens": 5, "output_tokens": 3},
        }  # fmt: skip


def reader_of(dialect: Dialect) -> AnswerReader:
    return answer_rules(dialect).reader(1)


def kinds(reader: AnswerReader, events: list[bytes]) -> str:
    return " ".join(reader.read(one).value for one in events)


STREAMS = [
    pytest.param(Dialect.RESPONSES, RESPONSES, Usage(input_tokens=9, output_tokens=2, cached_tokens=4), id="responses"),
    pytest.param(Dialect.MESSAGES, MESSAGES, Usage(input_tokens=9, output_tokens=2, cached_tokens=4), id="messages"),
    pytest.param(Dialect.AUDIO_SPEECH, SPEECH, Usage(input_tokens=3, output_tokens=8), id="speech"),
    pytest.param(Dialect.AUDIO_TRANSLATIONS, TRANSCRIPT, Usage(input_tokens=20, output_tokens=1), id="transcript"),
]


@pytest.mark.parametrize(("dialect", "events", "usage"), STREAMS)
@pytest.mark.parametrize("named", [True, False])
def test_a_whole_stream_is_understood(dialect: Dialect, events: list[bytes], usage: Usage, named: bool) -> None:
    """Also of an engine that leaves the events' names out, and of one that adds ``[DONE]``."""
    sent = events if named else [b"data: " + (data_of(one) or b"") + b"\n\n" for one in events]
    for last in ([], [DONE]):
        reader = reader_of(dialect)
        for one in sent[:-2]:
            reader.read(one)
            assert not reader.whole
        for one in [*sent[-2:], *last]:
            reader.read(one)
        assert reader.whole
        assert not reader.failed
        assert reader.closing() == b""
        assert reader.usage == usage
        assert reader.outputs == sum(b"delta" in one and b'"message_delta"' not in one for one in events)


def test_what_each_event_is() -> None:
    assert kinds(ResponsesReader(1), RESPONSES) == "output output output output output finish"
    told = "output output silent output output output finish done"
    assert kinds(MessagesReader(1), MESSAGES) == told
    assert kinds(SpeechReader(1), SPEECH) == "output finish"
    assert kinds(TranscriptReader(1), TRANSCRIPT) == "output finish"


@pytest.mark.parametrize(("dialect", "events", "_usage"), STREAMS)
def test_done_without_an_end_is_no_success(dialect: Dialect, events: list[bytes], _usage: Usage) -> None:
    reader = reader_of(dialect)
    kinds(reader, [*events[: -2 if dialect is Dialect.MESSAGES else -1], DONE])
    assert not reader.whole


ERRORS = [
    event("error", error={"type": "overloaded_error", "message": "gpu-7"}),
    event("error", code="server_error", message="gpu-7", param=None),
    # As llama-server tells one of messages: by the event's name only.
    b'event: error\ndata: {"code":500,"message":"gpu-7","type":"server_error"}\n\n',
    data_frame({"error": {"message": "gpu-7"}}),
]


@pytest.mark.parametrize("dialect", TYPED)
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_is_one_however_it_is_told(dialect: Dialect, error: bytes) -> None:
    events = {Dialect.RESPONSES: RESPONSES, Dialect.MESSAGES: MESSAGES, Dialect.AUDIO_SPEECH: SPEECH}
    reader = reader_of(dialect)
    kinds(reader, events.get(dialect, TRANSCRIPT))
    assert reader.read(error) is EventKind.ERROR
    assert not reader.whole


def test_a_response_that_failed_is_an_error_and_one_that_was_cut_is_whole() -> None:
    for failure in ("response.failed", "response.cancelled"):
        reader = ResponsesReader(1)
        failed = response("failed", error={"code": "server_error", "message": "gpu-7"})
        assert kinds(reader, [*RESPONSES[:3], event(failure, response=failed)]).endswith("error")
        assert not reader.whole
    reader = ResponsesReader(1)
    kinds(reader, [*RESPONSES[:3], event("response.incomplete", response=response("incomplete"))])
    assert reader.whole
    assert reader.usage is None


def test_a_message_without_its_stop_gets_one() -> None:
    reader = MessagesReader(1)
    kinds(reader, MESSAGES[:-1])
    assert reader.whole
    assert reader.closing() == MESSAGES[-1]
    # And one that stops without a reason has stopped.
    reader = MessagesReader(1)
    assert kinds(reader, [*MESSAGES[:5], MESSAGES[-1]]).endswith("finish")
    assert reader.whole


def test_what_a_message_used_when_it_broke_is_its_input_and_what_came() -> None:
    reader = MessagesReader(1)
    assert reader.used(3) == Usage(input_tokens=3, estimated=True)
    kinds(reader, MESSAGES[:4])
    assert reader.usage is None
    assert reader.used(3) == Usage(input_tokens=9, cached_tokens=4, output_tokens=1, estimated=True)


def test_a_transcript_in_chats_chunks_ends_with_done_only() -> None:
    """Each stretch of a long recording has a finish reason; a pause after one is no end."""

    def chunk(text: str, finish: str | None = None, **more: Any) -> bytes:
        return data_frame({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}], **more})

    usage = data_frame({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
    reader = TranscriptReader(1)
    assert kinds(reader, [chunk("a"), chunk("b", "stop"), chunk("c")]) == "output output output"
    kinds(reader, [chunk("d", "stop"), usage])
    assert (reader.whole, reader.closing()) == (False, DONE)
    reader.read(DONE)
    assert (reader.whole, reader.closing()) == (True, b"")
    assert reader.usage == Usage(input_tokens=3, output_tokens=4)
    reader = TranscriptReader(1)
    kinds(reader, [chunk("a", "stop"), chunk("b"), DONE])
    assert not reader.whole


OURS = {"message": "m", "type": "server_error", "param": None, "code": "engine_failed", "retryable": True}


def test_an_error_of_ours_has_the_dialects_form() -> None:
    error = {**OURS, "request_id": "req_1"}
    assert reader_of(Dialect.CHAT).error_frame(error) == data_frame({"error": error})
    reader = ResponsesReader(1)
    kinds(reader, RESPONSES[:4])
    frame = reader.error_frame(error)
    assert frame.startswith(b"event: error\n")
    assert json.loads(data_of(frame) or b"") == {
        "type": "error", "code": "engine_failed", "message": "m", "param": None, "retryable": True,
        "request_id": "req_1", "sequence_number": 4,
    }  # fmt: skip
    assert b'"sequence_number":0}' in ResponsesReader(1).error_frame(OURS)
    frame = MessagesReader(1).error_frame(error)
    assert frame.startswith(b"event: error\n")
    assert json.loads(data_of(frame) or b"") == {
        "type": "error",
        "error": {"type": "api_error", "message": "m", "param": None, "code": "engine_failed", "retryable": True},
        "request_id": "req_1",
    }
    for dialect in Dialect:
        told = reader_of(dialect)
        told.read(told.error_frame(error))
        assert told.failed


@given(text=st.text(), dialect=st.sampled_from((Dialect.RESPONSES, Dialect.MESSAGES)))
def test_nothing_that_a_model_writes_is_taken_for_structure(text: str, dialect: Dialect) -> None:
    wicked = text + '\nevent: error\n\n"type":"message_stop","error":{"a":1},"usage":{"input_tokens":9} [DONE]'
    events = {
        Dialect.RESPONSES: event("response.output_text.delta", delta=wicked),
        Dialect.MESSAGES: event("content_block_delta", index=0, delta={"type": "text_delta", "text": wicked}),
    }
    reader = reader_of(dialect)
    assert reader.read(events[dialect]) is EventKind.OUTPUT
    assert (reader.usage, reader.failed, reader.whole, reader.outputs) == (None, False, False, 1)


MEMBERS = (
    *("message", "delta", "usage", "content_block", "index", "text", "citation", "citations", "partial_json"),
    *("response", "output", "content", "input_tokens", "output_tokens", "stop_reason", "choices", "input"),
)
HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(MEMBERS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)
KINDS = ("message_start", "content_block_start", "content_block_delta", "message_delta", "response.completed", "x")


@given(st.lists(st.tuples(st.sampled_from(KINDS), HOSTILE), max_size=6), st.binary(max_size=20))
def test_what_is_hostile_is_read_and_put_together_somehow(told: list[tuple[str, Any]], junk: bytes) -> None:
    payloads = [junk]
    for kind, members in told:
        members = members if isinstance(members, dict) else {"delta": members}
        if kind == "content_block_delta" and isinstance(members.get("delta"), dict):
            members["delta"]["type"] = "input_json_delta"
        payloads.append(json.dumps({"type": kind, **members}).encode())
    for dialect in Dialect:
        rules = answer_rules(dialect)
        reader = rules.reader(1)
        for payload in payloads:
            reader.read(b"event: x\ndata: " + payload + b"\n\n")
            reader.read(b"data: " + payload + b"\n\n")
            assert rules.estimate(payload) >= 0
        if rules.assemble is not None:
            answer = rules.assemble(payloads)
            assert answer is None or isinstance(json.loads(answer), dict)


def put_together(dialect: Dialect, events: list[bytes]) -> Any:
    assemble = answer_rules(dialect).assemble
    assert assemble is not None
    answer = assemble([data for one in events if (data := data_of(one)) is not None])
    return None if answer is None else json.loads(answer)


def test_a_response_is_that_of_its_last_event() -> None:
    assert put_together(Dialect.RESPONSES, RESPONSES) == response(usage=RESPONSE_USAGE)
    assert put_together(Dialect.RESPONSES, [RESPONSES[1]]) is None


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


@given(text=st.text(), thought=st.text(), places=st.lists(st.integers(0, 100), max_size=5))
def test_a_message_cut_anywhere_is_put_together_again(text: str, thought: str, places: list[int]) -> None:
    called = {"city": text, "days": [1, 2]}
    whole = [
        {"type": "thinking", "thinking": thought, "signature": "s"},
        {"type": "text", "text": text, "citations": [{"a": 1}, {"b": 2}]},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": called},
    ]
    deltas: list[tuple[int, dict[str, Any]]] = [
        *((0, {"type": "thinking_delta", "thinking": part}) for part in cut(thought, places)),
        (0, {"type": "signature_delta", "signature": "s"}),
        *((1, {"type": "text_delta", "text": part}) for part in cut(text, places)),
        *((1, {"type": "citations_delta", "citation": citation}) for citation in ({"a": 1}, {"b": 2})),
        *((2, {"type": "input_json_delta", "partial_json": part}) for part in cut(json.dumps(called), places)),
    ]
    starts: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": "", "citations": None},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
    ]
    events = [MESSAGES[0]]
    events += [event("content_block_start", index=index, content_block=start) for index, start in enumerate(starts)]
    events += [event("content_block_delta", index=index, delta=delta) for index, delta in deltas]
    events += [event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 7}), MESSAGES[-1]]
    answer = put_together(Dialect.MESSAGES, events)
    assert answer == {
        **MESSAGE,
        "content": whole,
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 7},
    }
    assert usage_of(json.dumps(answer).encode()) == Usage(input_tokens=9, output_tokens=7, cached_tokens=4)


@pytest.mark.parametrize(
    ("found", "usage"),
    [
        ({"prompt_tokens": 7, "total_tokens": 7}, Usage(input_tokens=7)),
        ({"total_tokens": 7}, Usage(input_tokens=7)),
        ({"type": "duration", "seconds": 7}, Usage(input_tokens=70, estimated=True)),
        ({"type": "duration", "seconds": 0.31}, Usage(input_tokens=4, estimated=True)),
        ({"input_tokens": 3, "cache_creation_input_tokens": 5}, Usage(input_tokens=8)),
        ({"seconds": float("nan")}, None),
        ({"seconds": -1}, None),
        ({}, None),
        ([], None),
    ],
)
def test_usage_in_every_form(found: Any, usage: Usage | None) -> None:
    assert usage_from(found) == usage


def test_usage_of_coheres_rerank() -> None:
    answer = {"results": [], "meta": {"tokens": {"input_tokens": 12, "output_tokens": 0}}}
    assert usage_of(json.dumps(answer).encode()) == Usage(input_tokens=12)
    assert usage_of(b'{"meta":{"billed_units":{"search_units":1}}}') is None


def test_output_without_usage_is_estimated_by_what_there_is() -> None:
    def estimate(dialect: Dialect, body: Any) -> int:
        return answer_rules(dialect).estimate(body if isinstance(body, bytes) else json.dumps(body).encode())

    assert estimate(Dialect.RESPONSES, response()) == 2
    assert estimate(Dialect.MESSAGES, {"content": [{"type": "text", "text": "abcdef"}]}) == 2
    assert estimate(Dialect.MESSAGES, {"content": [{"type": "tool_use", "input": {"a": 1}}]}) == 3
    assert estimate(Dialect.RERANK, {"results": [{"relevance_score": 1}]}) == 0
    assert estimate(Dialect.AUDIO_TRANSCRIPTIONS, {"text": "abcdef"}) == 2
    assert estimate(Dialect.AUDIO_TRANSCRIPTIONS, b"abcdef") == 2
    assert estimate(Dialect.AUDIO_SPEECH, b"\0" * 16_000) == 10
