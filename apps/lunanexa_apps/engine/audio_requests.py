"""Requests for speech and for transcripts: read, refused by field, and planned.

Source: https://platform.openai.com/docs/api-reference/audio . Of the formats only those without a codec are
spoken.
"""

import hashlib
from collections.abc import Iterator
from math import ceil
from typing import Final

import attrs

from lunanexa_apps.engine.answers import Answer, count_prompt
from lunanexa_apps.engine.errors import ApiError, context_exceeded, invalid
from lunanexa_apps.engine.fields import Fields, Json
from lunanexa_apps.engine.generation import Generation
from lunanexa_apps.engine.language_model import LanguageModel
from lunanexa_apps.engine.sampling import Rng, Sampling
from lunanexa_apps.engine.settings import EngineSettings
from lunanexa_apps.engine.sound import read_wav, text_of
from lunanexa_apps.engine.tokenizer import tokenise
from lunanexa_apps.engine.typed_dialects import TranscriptDialect
from lunanexa_core.openai.form import FormPart, MalformedForm, boundary_of, form_parts

_TOKENS_A_SECOND: Final = 10
"""Of sound, as OpenAI's audio models count it."""
_WORDS_A_SECOND: Final = 3
_FORMS: Final = ("json", "text", "verbose_json")
_MAX_INPUT_CHARACTERS: Final = 4096


@attrs.frozen(kw_only=True)
class SpeechRequest:
    """``tokens``: of the text. ``wav``: with a header, else bare samples. ``events``: told as events."""

    model: str
    tokens: tuple[str, ...]
    wav: bool
    events: bool


def read_speech(values: "dict[str, Json]", settings: EngineSettings) -> SpeechRequest | ApiError:
    fields = Fields(values)
    model = fields.text("model")
    text = fields.text("input")
    if not 0 < len(text) <= _MAX_INPUT_CHARACTERS:
        fields.refuse("input", f"must have from 1 to {_MAX_INPUT_CHARACTERS} characters.")
    if fields.get("voice") is None:
        fields.refuse("voice", "is required; every voice sounds the same here.")
    form = fields.text("response_format", "wav")
    if form not in ("wav", "pcm"):
        fields.refuse("response_format", "must be 'wav' or 'pcm'.", "unsupported_parameter")
    if fields.number("speed", 0.25, 4.0, 1.0) != 1.0:
        fields.refuse("speed", "must be 1.", "unsupported_parameter")
    stream = fields.text("stream_format", "audio")
    if stream not in ("audio", "sse"):
        fields.refuse("stream_format", "must be 'audio' or 'sse'.")
    tokens = count_prompt(text, "input", settings)
    if fields.fault is not None:
        return fields.fault
    if isinstance(tokens, ApiError):
        return tokens
    return SpeechRequest(model=model, tokens=tuple(tokens), wav=form == "wav", events=stream == "sse")


@attrs.frozen(kw_only=True)
class TranscriptRequest:
    """``sound`` is the file as it came."""

    model: str
    sound: bytes
    form: str
    stream: bool
    sampling: Sampling


def read_transcript(body: bytes, content_type: str) -> TranscriptRequest | ApiError:
    boundary = boundary_of(content_type)
    if boundary is None:
        return ApiError(status=400, message="The body must be multipart/form-data with its boundary.")
    try:
        parts = form_parts(body, boundary)
    except MalformedForm as error:
        return ApiError(status=400, message=f"Could not read the form: {error} at byte {error.position}.")
    file = next((part for part in parts if part.name == "file"), None)
    if file is None or not file.file:
        return invalid("file", "'file' is required, as a file.")
    values: dict[str, Json] = {part.name: _value(body, part) for part in parts if not part.file}
    fields = Fields(values)
    form = fields.text("response_format", "json")
    if form not in _FORMS:
        fields.refuse("response_format", f"must be one of {', '.join(_FORMS)}.", "unsupported_parameter")
    request = TranscriptRequest(
        model=fields.text("model"),
        sound=body[file.start : file.end],
        form=form,
        stream=fields.flag("stream"),
        sampling=Sampling(temperature=fields.number("temperature", 0.0, 1.0, 1.0)),
    )
    return request if fields.fault is None else fields.fault


def _value(body: bytes, part: FormPart) -> "Json":
    """A field's value: fields have no types, so what looks like a flag or a number is one."""
    text = body[part.start : part.end].decode(errors="replace")
    if part.name == "temperature":
        try:
            return float(text)
        except ValueError:
            return text
    return {"true": True, "false": False}.get(text.lower(), text) if part.name == "stream" else text


def plan_transcript(
    request: TranscriptRequest, task: str, settings: EngineSettings, model: LanguageModel
) -> Answer | ApiError:
    """The text that the sound was made of, or for another sound one that follows from its bytes."""
    sound = read_wav(request.sound)
    if sound is None:
        return invalid("file", "'file' must be a WAV of plain samples.")
    heard = max(1, ceil(sound.seconds * _TOKENS_A_SECOND))
    room = settings.context_tokens - heard
    if room < 1:
        return context_exceeded("file", settings.context_tokens, f"{heard} tokens for the sound alone")
    told = text_of(sound)
    tokens: Iterator[str]
    if told is None:
        digest = hashlib.sha256(sound.samples).hexdigest()
        tokens = model.generate((), request.sampling, Rng(settings.seed, digest), endless=True)
        room = min(room, ceil(sound.seconds * _WORDS_A_SECOND) + 1)
    else:
        tokens = iter(tokenise(told))
    return Answer(
        prompt_tokens=heard,
        generation=Generation(tokens, max_tokens=room),
        dialect=TranscriptDialect(request.form, round(sound.seconds, 3), task),
        stream=request.stream,
    )
