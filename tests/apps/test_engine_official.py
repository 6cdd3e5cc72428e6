"""What OpenAI defines of the reference engine's younger dialects, judged by the official client's own types."""

import base64
import io
import wave
from typing import Any

import pytest
from openai.types.audio import Transcription, TranscriptionTextDeltaEvent, TranscriptionTextDoneEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from lunanexa_apps.engine.settings import Mode
from tests.apps.engine_driver import CREATED, engine, post
from tests.apps.test_engine_dialects import (
    RESPONSES,
    SPEECH,
    TRANSCRIPTIONS,
    TRANSLATIONS,
    events,
    response,
    speech,
    upload,
    wav,
)

# Its types take a second to import.
pytestmark = pytest.mark.thorough

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


async def test_a_response_stream_has_openais_events_in_their_order() -> None:
    app = engine(mode=Mode.ECHO)
    told = events(await post(app, RESPONSES, response(stream=True)))
    assert [event["type"] for event in told] == [
        *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
        *["response.output_text.delta"] * 3,
        *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
        "response.completed",
    ]
    assert [event["sequence_number"] for event in told] == list(range(11))
    typed = [EVENT.validate_python(event) for event in told]
    assert [event.type for event in typed] == [event["type"] for event in told]
    last = typed[-1].response
    assert (last.status, last.output_text, last.created_at) == ("completed", "One two.", CREATED)
    assert {event["item_id"] for event in told if "item_id" in event} == {last.output[0].id}
    whole = (await post(app, RESPONSES, response())).json()
    assert Response.model_validate(whole).output_text == "One two."
    changing = {"id", "output"}
    assert {name: value for name, value in whole.items() if name not in changing} == {
        name: value for name, value in told[-1]["response"].items() if name not in changing
    }
    assert whole["usage"]["total_tokens"] == whole["usage"]["input_tokens"] + 3


async def test_speech_is_a_real_wav_that_says_its_text() -> None:
    app = engine()
    call = await post(app, SPEECH, speech("Grüße, 世界."))
    assert call.header(b"content-type") == b"audio/wav"
    assert len(call.sent) > 3  # token by token
    with wave.open(io.BytesIO(call.body)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (8_000, 1, 2)
        assert file.getnframes() * 2 == len(call.body) - 44
    bare = await post(app, SPEECH, speech("Grüße, 世界.", response_format="pcm"))
    assert bare.header(b"content-type") == b"audio/pcm"
    assert bare.body == call.body[44:]
    *deltas, done = events(await post(app, SPEECH, speech("Grüße, 世界.", stream_format="sse")))
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == call.body
    assert done["usage"]["input_tokens"] == len(deltas)
    heard = await upload(app, call.body, model="reference")
    assert Transcription.model_validate(heard.json()).text == "Grüße, 世界."


async def test_a_transcript_in_every_form() -> None:
    app = engine()
    sound = wav("One two three.")
    usage = {
        "type": "tokens",
        "input_tokens": 2,
        "output_tokens": 4,
        "total_tokens": 6,
        "input_token_details": {"audio_tokens": 2, "text_tokens": 0},
    }
    for path in (TRANSCRIPTIONS, TRANSLATIONS):
        assert (await upload(app, sound, path, model="reference")).json() == {"text": "One two three.", "usage": usage}
    text = await upload(app, sound, model="reference", response_format="text")
    assert (text.header(b"content-type"), text.body) == (b"text/plain; charset=utf-8", b"One two three.")
    verbose = (await upload(app, sound, TRANSLATIONS, model="reference", response_format="verbose_json")).json()
    assert (verbose["task"], verbose["duration"]) == ("translate", 0.112)
    assert verbose["usage"] == {"type": "duration", "seconds": 0.112}
    *deltas, done = events(await upload(app, sound, model="reference", stream="true"))
    assert "".join(TranscriptionTextDeltaEvent.model_validate(delta).delta for delta in deltas) == "One two three."
    assert TranscriptionTextDoneEvent.model_validate(done).text == "One two three."
    assert done["usage"] == usage
