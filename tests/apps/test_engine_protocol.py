"""What the engine says, checked against OpenAI's forms: answers, streams, lists, refusals."""

import base64
import json
import struct
from collections.abc import MutableMapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lunanexa_apps.engine.settings import Mode
from tests.apps.engine_driver import CREATED, Call, chat, engine, get, metric, post, prepare

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
FINGERPRINT = "lunanexa-reference-engine"


async def test_a_chat_stream_is_told_in_openais_frames() -> None:
    app = engine(mode=Mode.ECHO)
    call = await post(app, CHAT, chat("One two.", stream=True, stream_options={"include_usage": True}))
    assert call.status == 200
    assert call.header(b"content-type") == b"text/event-stream; charset=utf-8"
    head = (
        f'{{"id":"chatcmpl-00000001","object":"chat.completion.chunk","created":{CREATED},"model":"reference",'
        f'"system_fingerprint":"{FINGERPRINT}","choices":['
    )

    def chunk(delta: str, finish: str = "null") -> str:
        return f'{head}{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish}}}],"usage":null}}'

    assert call.events() == [
        chunk('{"role":"assistant","content":""}'),
        chunk('{"content":"One"}'),
        chunk('{"content":" two"}'),
        chunk('{"content":"."}'),
        chunk("{}", '"stop"'),
        f'{head}],"usage":{{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}}}',
        "[DONE]",
    ]
    assert call.sent[-1]["more_body"] is False


async def test_a_stream_without_usage_says_nothing_of_usage() -> None:
    call = await post(engine(), CHAT, chat(stream=True))
    assert all("usage" not in document and len(document["choices"]) == 1 for document in call.documents())


async def test_a_completion_stream_has_no_role_chunk() -> None:
    app = engine(mode=Mode.ECHO)
    call = await post(app, COMPLETIONS, {"model": "reference", "prompt": "One two.", "stream": True})
    documents = call.documents()
    assert {document["object"] for document in documents} == {"text_completion"}
    assert [document["choices"][0]["text"] for document in documents] == ["One", " two", ".", ""]
    assert [document["choices"][0]["finish_reason"] for document in documents] == [None, None, None, "stop"]


async def test_a_whole_answer_is_the_streamed_one() -> None:
    body = chat(seed=4, max_tokens=60, ignore_eos=True)
    whole = (await post(engine(), CHAT, body)).json()
    streamed = (await post(engine(), CHAT, {**body, "stream": True})).documents()
    text = "".join(document["choices"][0]["delta"].get("content", "") for document in streamed)
    assert whole["object"] == "chat.completion"
    assert whole["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    assert whole["usage"]["completion_tokens"] == 60
    assert whole["usage"]["total_tokens"] == whole["usage"]["prompt_tokens"] + 60


async def test_the_seed_makes_the_text_and_the_prompt_does_without_one() -> None:
    async def said(text: str, **more: object) -> Any:
        answer = await post(engine(), CHAT, chat(text, max_tokens=40, ignore_eos=True, **more))
        return answer.json()["choices"][0]["message"]["content"]

    assert await said("a", seed=1) == await said("a", seed=1)
    assert await said("a", seed=1) != await said("a", seed=2)
    assert await said("a") == await said("a")
    assert await said("a") != await said("b")


async def test_stop_strings_end_the_answer_and_are_not_in_it() -> None:
    app = engine(mode=Mode.ECHO)
    for stop in (" three", [" four", " three"]):
        answer = (await post(app, CHAT, chat("one two three four", stop=stop))).json()
        assert answer["choices"][0]["message"]["content"] == "one two"
        assert answer["choices"][0]["finish_reason"] == "stop"


async def test_limits_of_tokens() -> None:
    app = engine(mode=Mode.ECHO)
    for name in ("max_tokens", "max_completion_tokens"):
        answer = (await post(app, CHAT, chat("one two three", **{name: 2}))).json()
        assert answer["choices"][0]["message"]["content"] == "one two"
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 2


async def test_echo_repeats_the_last_thing_that_the_user_said() -> None:
    messages = [
        {"role": "user", "content": "first"},
        {"role": "user", "content": [{"type": "text", "text": "sec"}, {"type": "text", "text": "ond"}]},
        {"role": "assistant", "content": None},
    ]
    answer = await post(engine(mode=Mode.ECHO), CHAT, {"model": "reference", "messages": messages})
    assert answer.json()["choices"][0]["message"]["content"] == "second"


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "steer",
            "parameters": {
                "type": "object",
                "properties": {
                    "to": {"type": "string"},
                    "knots": {"type": "integer"},
                    "side": {"enum": ["port", "starboard"]},
                    "all": {"type": "boolean"},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "anchor"}},
]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "steer"}}])
async def test_a_required_tool_call_comes_in_pieces(choice: object) -> None:
    body = chat(tools=TOOLS, tool_choice=choice)
    *middle, last = (await post(engine(), CHAT, {**body, "stream": True})).documents()
    calls = [document["choices"][0]["delta"]["tool_calls"][0] for document in middle]
    assert calls[0] == {
        "id": "call_00000002",
        "type": "function",
        "function": {"name": "steer", "arguments": ""},
        "index": 0,
    }
    assert len(calls) > 5
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert last["choices"][0]["finish_reason"] == "tool_calls"
    given = json.loads(arguments)
    assert {name: type(value) for name, value in given.items()} == {"to": str, "knots": int, "side": str, "all": bool}
    message = (await post(engine(), CHAT, body)).json()["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "steer", "arguments": arguments}


@pytest.mark.parametrize("choice", [None, "auto", "none"])
async def test_tools_that_need_not_be_called_are_not(choice: str | None) -> None:
    answer = (await post(engine(), CHAT, chat(tools=TOOLS, tool_choice=choice))).json()
    assert answer["choices"][0]["message"]["content"]


async def test_embeddings_in_both_encodings() -> None:
    body = {"model": "reference", "input": ["the sea", "the sea", "a clock"], "dimensions": 16}
    floats = (await post(engine(), EMBEDDINGS, body)).json()
    coded = (await post(engine(), EMBEDDINGS, {**body, "encoding_format": "base64"})).json()
    vectors = [row["embedding"] for row in floats["data"]]
    assert [row["index"] for row in floats["data"]] == [0, 1, 2]
    assert vectors[0] == vectors[1] != vectors[2]
    assert [list(struct.unpack("<16f", base64.b64decode(row["embedding"]))) for row in coded["data"]] == vectors
    assert floats["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    single = (await post(engine(), EMBEDDINGS, {"model": "reference", "input": "the sea"})).json()
    assert len(single["data"][0]["embedding"]) == 256


async def test_the_model_list_says_what_serves() -> None:
    app = engine(names=("sea", "start-17"), context_tokens=128)
    cards = (await get(app, "/v1/models")).json()["data"]
    assert [card["id"] for card in cards] == ["sea", "start-17"]
    for card in cards:
        assert card["owned_by"] == "lunanexa-reference-engine"
        assert card["root"] == "sea"
        assert card["meta"] == {
            "description": "n-gram reference engine, not a neural model",
            "max_model_len": 128,
            "mode": "model",
        }


async def test_each_served_name_is_accepted_and_the_first_is_told() -> None:
    app = engine(names=("sea", "start-17"))
    for name in ("sea", "start-17"):
        call = await post(app, COMPLETIONS, {"model": name, "prompt": "x", "max_tokens": 1})
        assert call.json()["model"] == "sea"


async def test_small_routes() -> None:
    app = engine(version="1.2.3", slots=2)
    assert (await get(app, "/health")).json() == {"status": "ok"}
    assert (await get(app, "/version")).json()["version"] == "1.2.3"
    idle = {"n_ctx": 4096, "is_processing": False, "prompt_tokens": 0, "completion_tokens": 0}
    assert (await get(app, "/slots")).json() == [{"id": 0, **idle}, {"id": 1, **idle}]


async def test_metrics_count_under_vllms_names() -> None:
    app = engine(names=('a"b',), mode=Mode.ECHO)
    await post(app, CHAT, {**chat("one two three"), "model": 'a"b'})
    await post(app, CHAT, {**chat("one two three", max_tokens=1), "model": 'a"b'})
    labels = 'engine="0",model_name="a\\"b"'
    assert await metric(app, f"vllm:generation_tokens_total{{{labels}}}") == 4
    assert await metric(app, f"vllm:prompt_tokens_total{{{labels}}}") == 18
    assert await metric(app, 'vllm:request_success_total{engine="0",finished_reason="stop"') == 1
    assert await metric(app, 'vllm:request_success_total{engine="0",finished_reason="length"') == 1
    assert await metric(app, 'vllm:request_success_total{engine="0",finished_reason="abort"') == 0
    assert await metric(app, "vllm:time_to_first_token_seconds_count") == 2
    assert await metric(app, "vllm:e2e_request_latency_seconds_count") == 2
    page = (await get(app, "/metrics")).body.decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert families["vllm:num_requests_running"].samples[0].labels == {"engine": "0", "model_name": 'a"b'}
    assert families["vllm:time_to_first_token_seconds"].type == "histogram"


def refusal(call: Call) -> tuple[int, str | None, str | None]:
    error = call.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    return call.status, error["param"], error["code"]


async def test_a_key_is_asked_for_everywhere_but_at_health() -> None:
    app = engine(api_key="sesame")
    assert (await get(app, "/health")).status == 200
    for path in ("/v1/models", "/metrics", "/version", "/slots", "/nowhere"):
        assert refusal(await get(app, path)) == (401, None, "invalid_api_key")
        assert refusal(await get(app, path, key="sesam")) == (401, None, "invalid_api_key")
    assert refusal(await post(app, CHAT, chat())) == (401, None, "invalid_api_key")
    assert (await get(app, "/v1/models", key="sesame")).status == 200
    assert (await post(app, CHAT, chat(), key="sesame")).status == 200
    basic = prepare("GET", "/v1/models")
    basic.scope["headers"].append((b"authorization", b"Basic sesame"))
    await basic.run(app)
    assert basic.status == 401


async def test_unknown_route_and_wrong_method() -> None:
    app = engine()
    assert refusal(await get(app, "/v2")) == (404, None, "not_found")
    assert refusal(await get(app, "/\udcff")) == (404, None, "not_found")
    wrong = await get(app, CHAT)
    assert refusal(wrong) == (405, None, "method_not_allowed")
    assert wrong.header(b"allow") == b"POST"
    assert refusal(await post(app, "/health", {})) == (405, None, "method_not_allowed")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"n": 2}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 1 << 63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": {}}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": "9"}, "max_completion_tokens"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"tools": {}}, "tools"),
        ({"tools": [{}]}, "tools[0]"),
        ({"tools": [{"function": {}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "sink"}}}, "tool_choice"),
    ],
)
async def test_a_wrong_field_is_named(more: dict[str, object], param: str) -> None:
    status, named, _ = refusal(await post(engine(), CHAT, {**chat(), **more}))
    assert (status, named) == (400, param)


async def test_of_a_bound_only_the_side_that_was_passed_is_told() -> None:
    answer = await post(engine(), CHAT, chat(max_tokens=0))
    assert answer.json()["error"]["message"] == "'max_tokens' must be at least 1."


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt"),
        (COMPLETIONS, {"prompt": [1, 2]}, "prompt"),
        (COMPLETIONS, {"prompt": "a", "best_of": 2}, "best_of"),
        (COMPLETIONS, {"prompt": "a", "echo": True}, "echo"),
        (EMBEDDINGS, {}, "input"),
        (EMBEDDINGS, {"input": ""}, "input"),
        (EMBEDDINGS, {"input": []}, "input"),
        (EMBEDDINGS, {"input": [[1, 2]]}, "input"),
        (EMBEDDINGS, {"input": "a", "dimensions": 0}, "dimensions"),
        (EMBEDDINGS, {"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ],
)
async def test_a_wrong_field_is_named_elsewhere(path: str, body: dict[str, object], param: str) -> None:
    status, named, _ = refusal(await post(engine(), path, {"model": "reference", **body}))
    assert (status, named) == (400, param)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS])
async def test_an_unknown_model_is_not_found(path: str) -> None:
    body = {**chat(), "model": "gone", "prompt": "a", "input": "a"}
    assert refusal(await post(engine(), path, body)) == (404, "model", "model_not_found")


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"", "character 0"),
        (b'{"model": ]', "character 10"),
        (b'{"model": "\xff"}', "byte 11"),
        (b"[]", "must be an object"),
        (b'{"seed": NaN}', "NaN"),
        (b'{"seed": 1e999}', "too large"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "4300"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "deeply"),
        (b'{"model": "\\ud800"}', "surrogate"),
    ],
)
async def test_what_is_not_json_is_told_with_its_place(body: bytes, where: str) -> None:
    call = await post(engine(), CHAT, body)
    assert refusal(call) == (400, None, "invalid_json")
    assert where in call.json()["error"]["message"]


async def test_the_context_has_an_end() -> None:
    app = engine(context_tokens=20, mode=Mode.ECHO)
    over = "context_length_exceeded"
    assert refusal(await post(app, CHAT, chat("a " * 20))) == (400, "messages", over)
    assert refusal(await post(app, CHAT, chat("a " * 10_000))) == (400, "messages", over)
    assert refusal(await post(app, CHAT, chat("a", max_tokens=20))) == (400, "max_tokens", over)
    assert refusal(await post(app, EMBEDDINGS, {"model": "reference", "input": "a " * 20})) == (400, "input", over)
    answer = (await post(app, CHAT, chat("a b c d e f g h i j k"))).json()
    assert answer["usage"]["total_tokens"] == 20
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_a_body_over_the_limit_is_refused_unread() -> None:
    app = engine(max_body_bytes=1000)
    declared = prepare("POST", CHAT, chat("x" * 2000))
    await declared.run(app)
    assert refusal(declared) == (413, None, "payload_too_large")
    assert declared.read_bytes == 0
    chunked = Call("POST", CHAT, [b"x" * 600] * 50, [])
    await chunked.run(app)
    assert refusal(chunked) == (413, None, "payload_too_large")
    assert chunked.read_bytes == 1200


async def test_a_body_in_parts_is_put_together() -> None:
    data = json.dumps(chat()).encode()
    call = Call("POST", CHAT, [data[:7], b"", data[7:]], [])
    await call.run(engine())
    assert call.status == 200


async def test_a_server_may_speak_lifespan_and_websocket() -> None:
    app = engine()
    sent: list[str] = []

    async def receive() -> dict[str, Any]:
        return {}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    await app({"type": "websocket"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]
