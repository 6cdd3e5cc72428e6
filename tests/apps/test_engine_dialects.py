"""The reference engine's younger dialects against their published forms: responses, messages, rerank, sound.

Anthropic's events are checked against its documentation; ``test_engine_official`` has OpenAI's own types judge.
"""

import io
import json
import wave
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_apps.engine.app import ReferenceEngine
from lunanexa_apps.engine.settings import Mode
from lunanexa_apps.engine.sound import read_wav, sound_of, text_of, wav_header
from lunanexa_core.sse import SseSplitter
from tests.apps.engine_driver import Call, engine, metric, post

RESPONSES, MESSAGES, RERANK = "/v1/responses", "/v1/messages", "/v1/rerank"
SPEECH, TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/translations"
BOUNDARY = "q9"


def response(text: Any = "One two.", **more: Any) -> dict[str, Any]:
    return {"model": "reference", "input": text, **more}


def message(text: Any = "One two.", **more: Any) -> dict[str, Any]:
    return {"model": "reference", "messages": [{"role": "user", "content": text}], "max_tokens": 40, **more}


def speech(text: str = "One two.", **more: Any) -> dict[str, Any]:
    return {"model": "reference", "input": text, "voice": "alloy", **more}


def wav(text: str) -> bytes:
    sound = sound_of(text)
    return wav_header(len(sound)) + sound


async def upload(app: ReferenceEngine, sound: bytes | None, path: str = TRANSCRIPTIONS, **fields: str) -> Call:
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    if sound is not None:
        head = 'Content-Disposition: form-data; name="file"; filename="Ein \\"Ton\\".wav"\r\n\r\n'
        parts.append(head.encode() + sound)
    body = b"".join(f"--{BOUNDARY}\r\n".encode() + part + b"\r\n" for part in parts) + f"--{BOUNDARY}--\r\n".encode()
    call = Call("POST", path, [body], [(b"content-type", f"multipart/form-data; boundary={BOUNDARY}".encode())])
    await call.run(app)
    return call


def events(call: Call) -> list[Any]:
    """The data of all events; each is named as its type."""
    assert call.header(b"content-type") == b"text/event-stream; charset=utf-8"
    splitter = SseSplitter(1 << 20)
    told = []
    for event in splitter.feed(call.body):
        name, data = event.decode().split("\n")[:2]
        document = json.loads(data.removeprefix("data: "))
        assert name == f"event: {document['type']}"
        told.append(document)
    assert splitter.rest() == b""
    assert call.sent[-1]["more_body"] is False
    return told


async def test_a_response_that_its_limit_cuts_is_incomplete() -> None:
    app = engine(mode=Mode.ECHO)
    told = events(await post(app, RESPONSES, response(stream=True, max_output_tokens=2)))
    assert told[-1]["type"] == "response.incomplete"
    assert told[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert told[-1]["response"]["usage"]["output_tokens"] == 2
    whole = (await post(app, RESPONSES, response(max_output_tokens=2))).json()
    assert (whole["status"], whole["output"][0]["status"]) == ("incomplete", "incomplete")


async def test_a_response_may_be_asked_for_in_items() -> None:
    app = engine(mode=Mode.ECHO)
    items = [
        {"role": "user", "content": "first"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "said"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "last"}]},
    ]
    whole = (await post(app, RESPONSES, response(items, instructions="Be brief."))).json()
    assert whole["output"][0]["content"][0]["text"] == "last"
    fewer = (await post(app, RESPONSES, response(items))).json()
    assert whole["usage"]["input_tokens"] > fewer["usage"]["input_tokens"]


async def test_a_message_stream_has_anthropics_events_in_their_order() -> None:
    app = engine(mode=Mode.ECHO)
    told = events(await post(app, MESSAGES, message(stream=True, system="Be brief.")))
    assert [event["type"] for event in told] == [
        *("message_start", "content_block_start", "ping"),
        *["content_block_delta"] * 3,
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    begun = told[0]["message"]
    assert (begun["content"], begun["stop_reason"], begun["usage"]["output_tokens"]) == ([], None, 0)
    assert told[3] == {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "One"}}
    assert told[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert told[-2]["usage"] == {"output_tokens": 3}
    whole = (await post(app, MESSAGES, message(system="Be brief."))).json()
    assert whole["content"] == [{"type": "text", "text": "One two."}]
    assert whole["usage"] == {**begun["usage"], "output_tokens": 3}
    assert (whole["type"], whole["role"], whole["model"]) == ("message", "assistant", "reference")


@pytest.mark.parametrize(
    ("more", "reason", "sequence", "text"),
    [
        ({}, "end_turn", None, "One two."),
        ({"max_tokens": 2}, "max_tokens", None, "One two"),
        ({"stop_sequences": ["x", " two"]}, "stop_sequence", " two", "One"),
    ],
)
async def test_why_a_message_ended(more: dict[str, Any], reason: str, sequence: str | None, text: str) -> None:
    app = engine(mode=Mode.ECHO)
    whole = (await post(app, MESSAGES, message([{"type": "text", "text": "One two."}], **more))).json()
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    assert whole["content"][0]["text"] == text


async def test_documents_are_ranked_by_their_words() -> None:
    body = {"model": "reference", "query": "the sea", "documents": ["a clock", "the sea", {"text": "the sea keeps"}]}
    answer = (await post(engine(), RERANK, {**body, "return_documents": True})).json()
    scores = [result["relevance_score"] for result in answer["results"]]
    assert [result["index"] for result in answer["results"]] == [1, 2, 0]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == 1.0
    assert all(0 <= score <= 1 for score in scores)
    assert answer["results"][1]["document"] == {"text": "the sea keeps"}
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    (best,) = (await post(engine(), RERANK, {**body, "top_n": 1})).json()["results"]
    assert best == {"index": 1, "relevance_score": 1.0}


@given(st.text(max_size=200))
def test_what_was_spoken_is_heard(text: str) -> None:
    sound = read_wav(wav(text))
    assert sound is not None
    assert sound.seconds == pytest.approx(0.008 * len(text.encode()))
    assert text_of(sound) == (text or None)


@given(st.binary(max_size=300), st.integers(0, 60))
def test_no_bytes_are_too_strange_to_be_listened_to(data: bytes, kept: int) -> None:
    for given_bytes in (data, wav("a")[:kept] + data):
        sound = read_wav(given_bytes)
        assert sound is None or text_of(sound) is None or sound.ours


async def test_another_sound_gets_a_text_that_follows_from_it() -> None:
    def noise(seed: int, rate: int = 16_000) -> bytes:
        kept = io.BytesIO()
        with wave.open(kept, "wb") as file:
            file.setparams((2, 2, rate, 0, "NONE", ""))
            file.writeframes(bytes((seed * number) % 251 for number in range(rate * 4 * 3)))
        return kept.getvalue()

    async def heard(sound: bytes) -> Any:
        return (await upload(engine(), sound, model="reference")).json()

    first = await heard(noise(7))
    assert first == await heard(noise(7))
    assert first["text"] != (await heard(noise(11)))["text"]
    assert first["text"]
    assert first["usage"]["input_tokens"] == 30
    assert first["usage"]["output_tokens"] == 10


async def test_sound_is_counted_as_it_is_made() -> None:
    app = engine(itl_ms=0)
    await post(app, SPEECH, speech("one two three"))
    assert await metric(app, "vllm:generation_tokens_total") == 3
    assert await metric(app, "vllm:num_requests_running") == 0


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (RESPONSES, response(previous_response_id="resp_1"), "previous_response_id"),
        (RESPONSES, response(background=True), "background"),
        (RESPONSES, response(None), "input"),
        (RESPONSES, response([{"role": "user", "content": [{"type": "input_image"}]}]), "input[0].content"),
        (RESPONSES, response(tool_choice="required"), "tool_choice"),
        (RESPONSES, response() | {"text": {"format": {"type": "json_schema"}}}, "text.format"),
        (RESPONSES, response("a " * 5000), "input"),
        (RESPONSES, response(max_output_tokens=5000), "max_output_tokens"),
        (MESSAGES, message(max_tokens=None), "max_tokens"),
        (MESSAGES, message(system=[{"type": "image"}]), "system"),
        (MESSAGES, message(stop_sequences=[""]), "stop_sequences"),
        (MESSAGES, message(tool_choice={"type": "any"}), "tool_choice"),
        (RERANK, {"model": "reference", "query": "a", "documents": []}, "documents"),
        (RERANK, {"model": "reference", "query": "a", "documents": [1]}, "documents"),
        (RERANK, {"model": "reference", "query": None, "documents": ["a"]}, "query"),
        (RERANK, {"model": "reference", "query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        (SPEECH, speech(""), "input"),
        (SPEECH, speech("a" * 4_097), "input"),
        (SPEECH, speech(voice=None), "voice"),
        (SPEECH, speech(response_format="mp3"), "response_format"),
        (SPEECH, speech(speed=2), "speed"),
        (SPEECH, speech(stream_format="x"), "stream_format"),
        *((path, {**body, "model": "gone"}, "model") for path, body in (
            (RESPONSES, response()), (MESSAGES, message()), (SPEECH, speech()),
            (RERANK, {"query": "a", "documents": ["a"]}),
        )),
    ],
)  # fmt: skip
async def test_a_wrong_field_is_named(path: str, body: dict[str, Any], param: str) -> None:
    call = await post(engine(), path, body)
    assert call.status == (404 if body["model"] == "gone" else 400)
    assert call.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("sound", "fields", "param"),
    [
        (None, {"model": "reference"}, "file"),
        (b"ID3 mp3", {"model": "reference"}, "file"),
        (wav("a" * 60_000), {"model": "reference"}, "file"),
        (wav("a"), {}, "model"),
        (wav("a"), {"model": "gone"}, "model"),
        (wav("a"), {"model": "reference", "response_format": "srt"}, "response_format"),
        (wav("a"), {"model": "reference", "stream": "maybe"}, "stream"),
        (wav("a"), {"model": "reference", "temperature": "hot"}, "temperature"),
        (wav("a"), {"model": "reference", "temperature": "nan"}, "temperature"),
    ],
)
async def test_a_wrong_field_of_a_form_is_named(sound: bytes | None, fields: dict[str, str], param: str) -> None:
    call = await upload(engine(max_body_bytes=1 << 24), sound, **fields)
    assert call.status in (400, 404)
    assert call.json()["error"]["param"] == param


async def test_what_is_no_form_is_refused() -> None:
    for body in (b"", b"{}", b"--q9\r\n"):
        call = Call("POST", TRANSCRIPTIONS, [body], [(b"content-type", b"multipart/form-data; boundary=q9")])
        await call.run(engine())
        assert call.status == 400
    assert (await post(engine(), TRANSCRIPTIONS, {})).status == 400


@pytest.mark.parametrize(
    ("path", "body", "outputs"),
    [
        (RESPONSES, response("one two three", stream=True), ["one", " two"]),
        (MESSAGES, message("one two three", stream=True), ["one", " two"]),
        (SPEECH, speech("one two three", stream_format="sse"), ["one", " two"]),
    ],
)
async def test_streams_break_as_they_are_told(path: str, body: dict[str, Any], outputs: list[str]) -> None:
    for fault in ("cut=2", "error-frame=2"):
        call = await post(engine(fault, mode=Mode.ECHO), path, body)
        assert call.aborted == (fault == "cut=2")
        told = [line for line in call.body.decode().splitlines() if line.startswith("data: ")]
        documents = [json.loads(line.removeprefix("data: ")) for line in told]
        if fault == "error-frame=2":
            assert documents[-1]["type"] == "error"
            assert "event: error\n" in call.body.decode()
        assert sum("delta" in document["type"] for document in documents) == len(outputs)
    call = await post(engine("no-done", mode=Mode.ECHO), MESSAGES, message(stream=True))
    assert events(call)[-1]["type"] == "message_delta"


async def test_bare_speech_breaks_too() -> None:
    whole = (await post(engine(), SPEECH, speech("one two three"))).body
    call = await post(engine("cut=2"), SPEECH, speech("one two three"))
    assert call.aborted
    assert whole.startswith(call.body)
    assert call.body == whole[: 44 + len(sound_of("one two"))]
    failed = await post(engine("error-frame"), SPEECH, speech())
    assert (failed.status, failed.json()["error"]["code"]) == (200, "injected_fault")
