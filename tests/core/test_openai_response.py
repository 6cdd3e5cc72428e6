"""What is read of engines' answers, on recorded streams and on hostile ones; and whole answers put together."""

import json
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.openai.assemble import assemble
from lunanexa_core.openai.head import RequestHead
from lunanexa_core.openai.request import peek_request
from lunanexa_core.openai.response import (
    error_object,
    estimated_usage,
    finished_choices,
    is_usage_only_event,
    output_estimate,
    usage_of,
)
from lunanexa_core.openai.stream import ChoicesReader, EventKind, data_frame
from lunanexa_core.sse import SseSplitter, data_of
from lunanexa_core.workload import Dialect, Usage

GOLDEN = Path(__file__).parent / "golden" / "openai"
LLAMA, VLLM = "llama-server", "vllm-0.32.0-cpu"


def recorded(engine: str) -> list[bytes]:
    splitter = SseSplitter(1 << 20)
    events = splitter.feed((GOLDEN / f"{engine}.chat_stream.sse").read_bytes())
    assert splitter.rest() == b""
    return events


def payloads(events: list[bytes]) -> list[bytes]:
    return [data for event in events if (data := data_of(event)) is not None and data != b"[DONE]"]


def event(**document: Any) -> bytes:
    return data_frame(document)


def choice(finish: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish}


@pytest.mark.parametrize(
    ("engine", "usage", "kinds"),
    [
        (LLAMA, Usage(input_tokens=25, output_tokens=3), "output output output output finish usage done"),
        (VLLM, Usage(input_tokens=14, output_tokens=3), "output output output finish usage done"),
    ],
)
def test_a_recorded_stream_is_understood(engine: str, usage: Usage, kinds: str) -> None:
    reader = ChoicesReader(choices=1)
    assert [reader.read(event).value for event in recorded(engine)] == kinds.split()
    assert reader.whole
    assert reader.done
    assert reader.usage == usage


def test_done_after_an_error_is_no_success() -> None:
    reader = ChoicesReader(choices=1)
    reader.read(event(choices=[choice(content="a")]))
    reader.read(event(choices=[choice("stop")]))
    assert reader.read(b'data: {"error":{"message":"boom","code":500}}\n\n') is EventKind.ERROR
    assert reader.read(b"data: [DONE]\n\n") is EventKind.DONE
    assert not reader.whole


def test_done_without_a_finish_is_no_success() -> None:
    reader = ChoicesReader(choices=1)
    reader.read(event(choices=[choice(content="a")]))
    reader.read(b"data: [DONE]\n\n")
    assert reader.done
    assert not reader.whole


def test_a_finish_without_done_is_one() -> None:
    reader = ChoicesReader(choices=1)
    assert reader.read(event(choices=[choice("stop", content="a")])) is EventKind.FINISH
    assert reader.whole
    assert not reader.done


def test_every_choice_must_finish() -> None:
    reader = ChoicesReader(choices=2)
    assert reader.read(event(choices=[choice("stop", 0)])) is EventKind.OUTPUT
    assert reader.read(event(choices=[choice("stop", 0)])) is EventKind.OUTPUT
    assert not reader.whole
    assert reader.read(event(choices=[choice("length", 1)])) is EventKind.FINISH
    assert reader.whole


def test_comments_are_silent_and_no_output() -> None:
    reader = ChoicesReader(choices=1)
    assert reader.read(b": ping\n\n") is EventKind.SILENT
    assert reader.outputs == 0


def test_a_role_and_a_reason_are_no_output() -> None:
    """Else what is booked of a stream that broke would be more than the engine made."""
    reader = ChoicesReader(choices=1)
    for data in (choice(role="assistant", content=""), choice(content="a"), choice(content="b"), choice("stop")):
        reader.read(event(choices=[data]))
    assert reader.outputs == 2
    for said in (choice("stop", content="a"), choice(tool_calls=[{}]), choice(reasoning_content="a"), {"text": "a"}, 7):
        reader = ChoicesReader(choices=1)
        reader.read(event(choices=[said]))
        assert reader.outputs == 1, said


@given(st.text())
def test_nothing_that_a_model_writes_is_taken_for_structure(text: str) -> None:
    wicked = text + '"usage":{"prompt_tokens":9,"completion_tokens":9},"error":{"a":1},"finish_reason":"stop" [DONE]'
    reader = ChoicesReader(choices=1)
    assert reader.read(event(choices=[choice(content=wicked)])) is EventKind.OUTPUT
    assert reader.usage is None
    assert not reader.failed
    assert not reader.whole


@given(st.binary())
def test_no_event_raises(data: bytes) -> None:
    for payload in (data, b'{"usage":{' + data, b'{"error":{' + data, b'"finish_reason":"' + data):
        ChoicesReader(choices=1).read(b"data: " + payload + b"\n\n")
        usage_of(payload), error_object(payload), finished_choices(payload), output_estimate(payload)
        assemble(Dialect.CHAT, [payload])


@pytest.mark.thorough
def test_an_answer_that_is_nested_too_deeply_is_none() -> None:
    for depth in range(900, 1_000):
        deep = b'{"choices":[{"delta":{"x":' + b"[" * depth + b"]" * depth + b"}}]}"
        for chunks in ([deep], [deep, deep]):
            answer = assemble(Dialect.CHAT, chunks)
            assert answer is None or answer.startswith(b"{")


def test_deep_nesting_of_an_engine_is_no_fault_of_ours() -> None:
    deep = b'{"usage":{"prompt_tokens":1},"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert usage_of(deep) is None
    assert error_object(b'{"error":{"x":' + b"[" * 100_000) is None


@pytest.mark.parametrize("count", [-1, 2**53, 1.0, "3", True, None])
def test_counts_that_are_none_are_not_believed(count: Any) -> None:
    payload = json.dumps({"usage": {"prompt_tokens": count, "completion_tokens": 2}}).encode()
    assert usage_of(payload) == Usage(output_tokens=2)
    assert usage_of(json.dumps({"usage": {"prompt_tokens": count}}).encode()) is None


def test_usage_of_whole_answers() -> None:
    details = {"cached_tokens": 4}
    answer = {"usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": details}}
    assert usage_of(json.dumps(answer).encode()) == Usage(input_tokens=7, output_tokens=2, cached_tokens=4)
    vectors = {"data": [{"embedding": [0.25] * 100_000}], "usage": {"prompt_tokens": 7, "total_tokens": 7}}
    large = json.dumps(vectors).encode()
    assert len(large) > 256 * 1024
    assert usage_of(large) == Usage(input_tokens=7)
    assert usage_of(b"x" * 300_000 + b'"usage":{') is None
    assert usage_of(b'{"choices":[]}') is None
    assert usage_of(b'{"usage":null}') is None


def test_usage_only_events() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    assert is_usage_only_event(json.dumps({"choices": [], "usage": usage}).encode())
    assert is_usage_only_event(json.dumps({"usage": usage}).encode())
    assert not is_usage_only_event(json.dumps({"choices": [choice("stop")], "usage": usage}).encode())
    assert not is_usage_only_event(json.dumps({"choices": [], "usage": None}).encode())


def test_errors_inside_a_200() -> None:
    assert error_object(b'{"error":{"message":"m"}}') == {"message": "m"}
    assert error_object(b'{"error": "m"}') == {"message": "m"}
    assert error_object(b'{"error":null}') is None
    assert error_object(b'{"choices":[{"error":{"message":"m"}}]}') is None


def test_output_is_estimated_by_its_texts() -> None:
    message = {"content": "abcdef", "reasoning_content": "abc"}
    assert output_estimate(json.dumps({"choices": [{"message": message}, {"text": "abc"}]}).encode()) == 4
    calls = {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    assert output_estimate(json.dumps({"choices": [{"message": calls}]}).encode()) > 5
    assert output_estimate(b"[]") == 0
    head = peek_request(Dialect.CHAT, b'{"model":"a"}')
    assert isinstance(head, RequestHead)
    assert estimated_usage(head, 3) == Usage(input_tokens=5, output_tokens=3, estimated=True)


def test_the_recorded_stream_of_llama_server_is_put_together() -> None:
    answer = put_together(Dialect.CHAT, payloads(recorded(LLAMA)))
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "gemma"
    assert answer["usage"]["total_tokens"] == 28
    assert answer["timings"]["predicted_n"] == 3
    assert answer["choices"] == [
        {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "Hi\n<"}}
    ]


def test_the_recorded_stream_of_vllm_is_put_together() -> None:
    answer = put_together(Dialect.CHAT, payloads(recorded(VLLM)))
    (only,) = answer["choices"]
    assert only["message"] == {"role": "assistant", "content": "asedail purpose"}
    assert only["finish_reason"] == "length"
    assert usage_of(json.dumps(answer).encode()) == Usage(input_tokens=14, output_tokens=3)


def put_together(dialect: Dialect, payloads: list[bytes]) -> Any:
    answer = assemble(dialect, payloads)
    assert answer is not None
    return json.loads(answer)


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


PLACES = st.lists(st.integers(0, 100), max_size=5)


@given(texts=st.lists(st.text(), min_size=1, max_size=3), places=PLACES, data=st.data())
def test_a_text_cut_anywhere_is_put_together_again(texts: list[str], places: list[int], data: st.DataObject) -> None:
    chunks = [
        choice(index=index, content=part) for index, text in enumerate(texts) for part in ["", *cut(text, places)]
    ]
    # Choices come in any order among each other, each in its own.
    order = data.draw(st.permutations(range(len(chunks))))
    queues = {index: [one for one in chunks if one["index"] == index] for index in range(len(texts))}
    woven = [queues[chunks[place]["index"]].pop(0) for place in order]
    stream = [json.dumps({"id": "c", "choices": [one]}).encode() for one in woven]
    stream += [json.dumps({"choices": [choice("stop", index)]}).encode() for index in range(len(texts))]
    answer = put_together(Dialect.CHAT, stream)
    assert [one["message"]["content"] for one in answer["choices"]] == texts
    assert {one["finish_reason"] for one in answer["choices"]} == {"stop"}


@given(calls=st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=3), places=PLACES)
def test_tool_calls_cut_anywhere_are_put_together_again(calls: list[tuple[str, str]], places: list[int]) -> None:
    chunks = [choice(role="assistant", content=None)]
    for index, (name, arguments) in enumerate(calls):
        first = {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": ""}}
        chunks.append(choice(tool_calls=[first]))
        chunks += [
            choice(tool_calls=[{"index": index, "function": {"arguments": part}}]) for part in cut(arguments, places)
        ]
    chunks.append(choice("tool_calls"))
    answer = put_together(Dialect.CHAT, [json.dumps({"choices": [chunk]}).encode() for chunk in chunks])
    message = answer["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(calls)
    ]


@given(text=st.text(), places=PLACES)
def test_completions_are_put_together(text: str, places: list[int]) -> None:
    chunks = [{"index": 0, "text": part, "finish_reason": None, "logprobs": None} for part in cut(text, places)]
    chunks.append({"index": 0, "text": "", "finish_reason": "stop", "logprobs": None})
    answer = put_together(Dialect.COMPLETIONS, [json.dumps({"choices": [one]}).encode() for one in chunks])
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [{"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}]


def transient_bytes(deltas: list[dict[str, Any]]) -> int:
    """What putting the deltas together allocates, beyond what it keeps, summed over all of them."""
    spent = 0

    def told() -> Iterator[bytes]:
        nonlocal spent
        for payload in [json.dumps({"choices": [delta]}).encode() for delta in deltas]:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            yield payload
            spent += tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    try:
        assert assemble(Dialect.CHAT, told())
    finally:
        tracemalloc.stop()
    return spent


@pytest.mark.parametrize(
    "delta",
    [
        choice(content="x" * 1_000),
        choice(tool_calls=[{"index": 0, "function": {"arguments": "x" * 1_000}}]),
        {"index": 0, "text": "x" * 1_000},
        {"index": 0, "logprobs": {"content": [0] * 100}},
    ],
)
def test_a_long_answer_is_not_copied_with_each_part(delta: dict[str, Any]) -> None:
    few, many = transient_bytes([delta] * 25), transient_bytes([delta] * 200)
    assert many < 16 * few  # 8, if each part costs the same; 64, if each costs what came before it.


NAMES = st.sampled_from(
    ("choices", "delta", "message", "index", "text", "tool_calls", "function", "arguments", "logprobs", "content", "id")
)
HOSTILE = st.recursive(
    st.none() | st.integers(0, 2) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(HOSTILE, max_size=5))
def test_what_is_hostile_in_a_stream_is_put_together_somehow(deltas: list[Any]) -> None:
    chunks = [{"choices": deltas}, *({"choices": [{"delta": delta}]} for delta in deltas), *deltas]
    for dialect in (Dialect.CHAT, Dialect.COMPLETIONS):
        answer = put_together(dialect, [json.dumps(chunk).encode() for chunk in chunks])
        assert isinstance(answer["choices"], list)


def test_members_that_are_lists_or_objects_are_joined() -> None:
    chunks = [
        b'{"choices":[{"delta":{"content":[1]},"logprobs":{"content":[1]}}]}',
        b'{"choices":[{"delta":{"content":[2]},"logprobs":{"content":[2]}}]}',
    ]
    (only,) = put_together(Dialect.CHAT, chunks)["choices"]
    assert only["message"]["content"] == [1, 2]
    assert only["logprobs"] == {"content": [1, 2]}
    assert put_together(Dialect.COMPLETIONS, [])["choices"] == []
    assert put_together(Dialect.COMPLETIONS, [b'{"choices":[{}]}'])["choices"][0]["text"] == ""
