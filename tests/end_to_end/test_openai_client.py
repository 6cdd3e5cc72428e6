"""The official client against a whole installation: its answers, its streams and its own exception classes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import trio
from openai.types.chat import ChatCompletionChunk

from tests.end_to_end.installation import QUESTION, Ready, engine_with, receipt_of, running, status_of

pytestmark = pytest.mark.slow

WORKLOAD = "x-lunanexa-workload-id"


def client_of(ready: Ready, *, api_key: str | None = None) -> openai.OpenAI:
    return openai.OpenAI(base_url=ready.base_url, api_key=api_key or ready.api_key, max_retries=0)


@pytest.fixture
def client(ready: Ready) -> Iterator[openai.OpenAI]:
    with client_of(ready) as client:
        yield client


def question(ready: Ready, **changes: Any) -> dict[str, Any]:
    return {"model": ready.model, "messages": [QUESTION], "seed": 7, "max_tokens": 24, **changes}


def stream_of(client: openai.OpenAI, request: dict[str, Any]) -> tuple[str, list[ChatCompletionChunk]]:
    """The workload's id and all chunks."""
    answer = client.chat.completions.with_raw_response.create(**request, stream=True)
    with answer.parse() as stream:
        return answer.headers[WORKLOAD], list(stream)


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_the_model_is_listed(client: openai.OpenAI, ready: Ready) -> None:
    assert [model.id for model in client.models.list()] == [ready.model]


def test_chat_is_the_same_text_whole_and_streamed(client: openai.OpenAI, ready: Ready) -> None:
    whole = client.chat.completions.create(**question(ready))
    _, chunks = stream_of(client, question(ready))
    assert whole.choices[0].message.content == text_of(chunks) != ""
    assert whole.model == ready.model
    assert whole.usage is not None
    assert whole.usage.completion_tokens <= 24
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


@pytest.mark.parametrize("asked", [None, False, True])
def test_usage_is_told_when_asked_for_and_booked_always(
    client: openai.OpenAI, ready: Ready, asked: bool | None
) -> None:
    options = {} if asked is None else {"stream_options": {"include_usage": asked}}
    before = status_of(ready)["usage"]["output_tokens"]
    workload, chunks = stream_of(client, question(ready, **options))
    told = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert len(told) == (1 if asked else 0)
    assert all(chunk.choices for chunk in chunks) != bool(asked)
    receipt = receipt_of(ready, workload)
    assert receipt["state"] == "Succeeded"
    assert not receipt["estimated"]
    whole = client.chat.completions.create(**question(ready)).usage
    assert whole is not None
    assert (receipt["input_tokens"], receipt["output_tokens"]) == (whole.prompt_tokens, whole.completion_tokens)
    if asked:
        assert told == [whole]
    assert status_of(ready)["usage"]["output_tokens"] == before + 2 * whole.completion_tokens


def test_completions_whole_and_streamed(client: openai.OpenAI, ready: Ready) -> None:
    request: dict[str, Any] = {"model": ready.model, "prompt": "The moon is", "max_tokens": 12, "seed": 1}
    whole = client.completions.create(**request)
    with client.completions.create(**request, stream=True) as stream:
        streamed = "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
    assert whole.choices[0].text == streamed != ""


def test_embeddings(client: openai.OpenAI, ready: Ready) -> None:
    vectors = client.embeddings.create(model=ready.model, input=["the sea", "the sea", "a clock"])
    first, same, other = (row.embedding for row in vectors.data)
    assert first == same != other
    assert len(first) > 1


def test_a_tool_call_streams(client: openai.OpenAI, ready: Ready) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "find_tide",
            "parameters": {"type": "object", "properties": {"harbour": {"type": "string"}}, "required": ["harbour"]},
        },
    }
    _, chunks = stream_of(client, question(ready, tools=[tool], tool_choice="required"))
    pieces = [call for chunk in chunks if chunk.choices for call in chunk.choices[0].delta.tool_calls or ()]
    functions = [piece.function for piece in pieces if piece.function is not None]
    assert "".join(function.name or "" for function in functions) == "find_tide"
    assert set(json.loads("".join(function.arguments or "" for function in functions))) == {"harbour"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_response_is_the_same_text_whole_and_streamed(client: openai.OpenAI, ready: Ready) -> None:
    request: dict[str, Any] = {"model": ready.model, "input": QUESTION["content"], "max_output_tokens": 12}
    whole = client.responses.create(**request)
    with client.responses.create(**request, stream=True) as stream:
        events = list(stream)
    told = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].type in ("response.completed", "response.incomplete")
    last = events[-1].response
    assert whole.output_text == told == last.output_text != ""
    assert whole.usage is not None
    assert last.usage == whole.usage
    assert whole.usage.output_tokens <= 12
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**request, previous_response_id=whole.id)
    assert caught.value.param == "previous_response_id"


def test_speech_is_heard_again(client: openai.OpenAI, ready: Ready, tmp_path: Path) -> None:
    request: dict[str, Any] = {"model": ready.model, "input": "The moon is a lamp.", "voice": "alloy"}
    spoken = client.audio.speech.create(**request, response_format="wav")
    assert spoken.response.headers["content-type"] == "audio/wav"
    with client.audio.speech.with_streaming_response.create(**request, response_format="wav") as stream:
        stream.stream_to_file(tmp_path / "moon.wav")
    assert (tmp_path / "moon.wav").read_bytes() == spoken.content
    sound = ("moon.wav", spoken.content)
    assert client.audio.transcriptions.create(model=ready.model, file=sound).text == "The moon is a lamp."
    with pytest.warns(DeprecationWarning, match="deprecated"):
        translated = client.audio.translations.create(model=ready.model, file=sound)
    assert translated.text == "The moon is a lamp."
    with client.audio.transcriptions.create(model=ready.model, file=sound, stream=True) as events:
        told = "".join(event.delta for event in events if event.type == "transcript.text.delta")
    assert told == "The moon is a lamp."


def test_messages_and_rerank(ready: Ready) -> None:
    """Anthropic's client sends its key as ``x-api-key``."""
    headers = {"x-api-key": ready.api_key, "anthropic-version": "2023-06-01"}
    body = {"model": ready.model, "messages": [QUESTION], "max_tokens": 8}
    whole = httpx2.post(f"{ready.base_url}/messages", headers=headers, json=body)
    assert whole.status_code == 200, whole.text
    streamed = httpx2.post(f"{ready.base_url}/messages", headers=headers, json={**body, "stream": True})
    events = [
        json.loads(line.removeprefix("data: ")) for line in streamed.text.splitlines() if line.startswith("data:")
    ]
    assert events[-1] == {"type": "message_stop"}
    told = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert told == whole.json()["content"][0]["text"] != ""
    receipts = [receipt_of(ready, answer.headers[WORKLOAD]) for answer in (whole, streamed)]
    assert [receipt["output_tokens"] for receipt in receipts] == [whole.json()["usage"]["output_tokens"]] * 2
    ranked = httpx2.post(
        f"{ready.base_url}/rerank",
        headers=headers,
        json={"model": ready.model, "query": "the sea", "documents": ["a clock", "the sea"]},
    )
    assert [result["index"] for result in ranked.json()["results"]] == [1, 0]


def test_a_wrong_key_is_an_authentication_error(ready: Ready) -> None:
    with client_of(ready, api_key="lnx_wrong") as client, pytest.raises(openai.AuthenticationError) as caught:
        client.chat.completions.create(**question(ready))
    assert caught.value.code == "invalid_api_key"


def test_an_unknown_model_is_a_not_found_error(client: openai.OpenAI, ready: Ready) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**question(ready, model="nothing-of-this-name"))
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_is_a_bad_request_error(client: openai.OpenAI, ready: Ready, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**question(ready, messages=[{"role": "nobody"}]), stream=stream)
    assert caught.value.param == "messages[0].role"
    receipt = receipt_of(ready, caught.value.response.headers[WORKLOAD])
    assert (receipt["detail"], receipt["output_tokens"]) == ("engine_refused_400", 0)


def test_what_is_no_json_is_a_bad_request(ready: Ready) -> None:
    answer = httpx2.post(
        f"{ready.base_url}/chat/completions",
        headers={"authorization": f"Bearer {ready.api_key}", "content-type": "application/json"},
        content=b'{"model": }',
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("invalid_request", "invalid_request_error")
    assert error["request_id"] == answer.headers["x-request-id"]


def overload(ready: Ready) -> None:
    with client_of(ready) as client, client.chat.completions.create(**question(ready), stream=True) as held:
        next(iter(held))
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(**question(ready))
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(**question(ready), stream=True)
    assert caught.value.code == "queue_full"
    assert int(caught.value.response.headers["retry-after"]) >= 1


async def test_a_full_queue_is_a_rate_limit_error(tmp_path: Path) -> None:
    stalled = engine_with(tmp_path, "--itl-ms", "600000")
    async with running(tmp_path, "--slots", "1", *stalled, LUNANEXA_QUEUE_REQUESTS_MAX="0") as up:
        await trio.to_thread.run_sync(overload, up.ready)
        await up.until(lambda: status_of(up.ready)["deployments"][0]["queue"]["running"] == 0, "the slot's release")
        await up.stop()
