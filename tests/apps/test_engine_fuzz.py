"""Whatever is asked, the engine answers in its forms and never with a 5xx; afterwards it stands at rest."""

import json
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from lunanexa_apps.engine.settings import Mode
from lunanexa_apps.engine.sound import wav_header
from tests.apps.engine_driver import Call, engine, metric
from tests.examples import examples

PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/rerank"),
    "/v1/audio/speech",
)
FORMS = ("/v1/audio/transcriptions", "/v1/audio/translations")
ROUTES = (*PATHS, *FORMS, "/health", "/v1/models", "/metrics", "/version", "/slots", "/", "")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
CONTENT = st.text(max_size=60) | st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=20)}), max_size=2
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": CONTENT}),
    min_size=1,
    max_size=3,
)
SCHEMA = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "integer", "array", "null"])}, optional={"enum": JSON}
)
TOOL = st.fixed_dictionaries(
    {
        "function": st.fixed_dictionaries(
            {"name": st.text(max_size=5)},
            optional={
                "parameters": JSON
                | st.fixed_dictionaries({"properties": st.dictionaries(st.text(max_size=4), SCHEMA | JSON, max_size=3)})
            },
        )
    }
)
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "messages": MESSAGES,
    "prompt": st.text(max_size=60),
    "input": st.text(min_size=1, max_size=60) | st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=3),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "max_tokens": st.integers(1, 40),
    "max_completion_tokens": st.integers(1, 40),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "seed": st.integers(-9, 9),
    "stop": st.text(min_size=1, max_size=2) | st.lists(st.text(min_size=1, max_size=2), max_size=3),
    "ignore_eos": st.booleans(),
    "tools": st.lists(TOOL, max_size=2),
    "tool_choice": st.sampled_from(["none", "auto", "required"]),
    "dimensions": st.integers(1, 64),
    "encoding_format": st.sampled_from(["float", "base64"]),
    "max_output_tokens": st.integers(1, 40),
    "instructions": st.text(max_size=9),
    "system": CONTENT,
    "stop_sequences": st.lists(st.text(min_size=1, max_size=2), max_size=3),
    "query": st.text(max_size=20),
    "documents": st.lists(st.text(max_size=20), min_size=1, max_size=3),
    "top_n": st.integers(1, 4),
    "voice": st.just("alloy"),
    "response_format": st.sampled_from(["wav", "pcm"]),
    "stream_format": st.sampled_from(["sse", "audio"]),
}
REQUESTS = st.fixed_dictionaries(
    {"model": st.just("reference") | JSON},
    optional={**{name: good | JSON for name, good in GOOD.items()}, "n": st.just(1) | JSON},
)
GOOD_REQUESTS = st.fixed_dictionaries(
    {"model": st.just("reference"), **{name: GOOD[name] for name in ("messages", "prompt", "input", "max_tokens")}},
    optional={
        name: GOOD[name] for name in ("seed", "stop", "temperature", "top_p", "ignore_eos", "tools", "tool_choice")
    },
)
HEADERS = st.lists(st.tuples(st.sampled_from([b"content-length", b"authorization", b"x"]), st.binary(max_size=30)))


def ask(call: Call, **more: Any) -> Call:
    async def main() -> None:
        app = engine(context_tokens=64, slots=1, queue=0, max_body_bytes=4096, **more)
        await call.run(app)
        for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert await metric(app, f"vllm:{gauge}", key="sesame") == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert 200 <= call.status < 500
    if call.status != 200:
        error = call.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
    elif call.header(b"content-type") == b"text/event-stream; charset=utf-8":
        assert call.documents() if call.body.startswith(b"data: ") else call.body.endswith(b"\n\n")
    elif not (call.header(b"content-type") or b"").startswith(b"audio/"):
        assert call.sent[0]["headers"][1] == (b"content-length", str(len(call.body)).encode())
    return call


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(st.sampled_from(PATHS), REQUESTS, st.sampled_from(Mode))
def test_any_json_gets_an_answer(path: str, request: Any, mode: Mode) -> None:
    ask(Call("POST", path, [json.dumps(request).encode()], []), mode=mode)


@given(
    st.sampled_from(FORMS),
    st.lists(st.tuples(st.sampled_from(["model", "file", "stream", "response_format"]), st.binary(max_size=60))),
    st.binary(max_size=9),
)
def test_any_form_gets_an_answer(path: str, fields: list[tuple[str, bytes]], last: bytes) -> None:
    body = b""
    for name, value in fields:
        known = {"model": b"reference", "stream": b"true", "file": wav_header(len(value)) + value}.get(name, value)
        file = '; filename="a"' if name == "file" else ""
        body += f'--q\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + known + b"\r\n"
    ask(Call("POST", path, [body + b"--q--" + last], [(b"content-type", b"multipart/form-data; boundary=q")]))


@given(
    st.sampled_from(["GET", "POST", "PUT", "", "\xff"]),
    st.sampled_from(ROUTES) | st.text(st.characters(), max_size=9),
    st.lists(st.binary(max_size=3000) | st.just(b'{"model":'), min_size=1, max_size=3),
    HEADERS,
    st.none() | st.just("sesame"),
)
def test_any_bytes_get_an_answer(
    method: str, path: str, parts: list[bytes], headers: list[tuple[bytes, bytes]], key: str | None
) -> None:
    ask(Call(method, path, parts, headers), api_key=key)


@given(st.sampled_from(PATHS[:2]), GOOD_REQUESTS)
def test_usage_adds_up_and_the_stream_says_what_the_whole_answer_says(path: str, request: Any) -> None:
    whole = ask(Call("POST", path, [json.dumps(request).encode()], []))
    streamed_request = {**request, "stream": True, "stream_options": {"include_usage": True}}
    streamed = ask(Call("POST", path, [json.dumps(streamed_request).encode()], []))
    assert streamed.status == whole.status
    if whole.status != 200:
        assert streamed.json() == whole.json()
        return
    answer = whole.json()
    *chunks, usage = streamed.documents()
    assert usage["usage"] == answer["usage"]
    assert usage["choices"] == []
    used = answer["usage"]
    assert used["total_tokens"] == used["prompt_tokens"] + used["completion_tokens"] <= 64
    assert used["completion_tokens"] <= request["max_tokens"]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[-1]["finish_reason"] == answer["choices"][0]["finish_reason"]
    assert all(choice["finish_reason"] is None for choice in choices[:-1])
    if path == "/v1/completions":
        assert "".join(choice["text"] for choice in choices) == answer["choices"][0]["text"]
    elif answer["choices"][0]["message"]["content"] is not None:
        told = "".join(choice["delta"].get("content", "") for choice in choices)
        assert told == answer["choices"][0]["message"]["content"]
