"""Speech: one token's sound after the other, as bare bytes or as events."""

import base64
from functools import partial

from lunanexa_apps.engine import errors
from lunanexa_apps.engine.audio_requests import SpeechRequest
from lunanexa_apps.engine.dialects import Usage
from lunanexa_apps.engine.exchange import AnswerStream, Exchange
from lunanexa_apps.engine.faults import FaultKind
from lunanexa_apps.engine.frames import named_frame
from lunanexa_apps.engine.metrics import Progress
from lunanexa_apps.engine.slots import Place
from lunanexa_apps.engine.sound import sound_bytes, sound_of, wav_header
from lunanexa_apps.engine.turns import Turns


async def say(turns: Turns, request: SpeechRequest, exchange: Exchange) -> None:
    """Speaks, in its turn."""
    used = len(request.tokens)
    if FaultKind.ERROR_FRAME in exchange.struck and not request.events:
        await exchange.send_answer(b"")  # bare sound has no place for an error
        return
    await turns.take(exchange, used, partial(_sound_out, turns, exchange, request))


async def _sound_out(
    turns: Turns, exchange: Exchange, request: SpeechRequest, place: Place, progress: Progress
) -> None:
    """One token's sound after the other."""
    total_bytes = sum(map(sound_bytes, request.tokens))
    header = wav_header(total_bytes) if request.wav else b""
    bare = b"audio/wav" if request.wav else b"audio/pcm"
    stream = await (exchange.open_events() if request.events else exchange.open_stream(bare))
    async with turns.slots.hold(place, len(request.tokens)) as slot:
        pacer = turns.begin(progress, len(request.tokens))
        for number, token in enumerate(request.tokens):
            if number == stream.breaks_after:
                break
            await pacer.token_due()
            slot.completion_tokens += 1
            turns.metrics.token(progress)
            await _send_sound(stream, request, (b"" if number else header) + sound_of(token))
    if stream.breaks_after is not None:
        await stream.break_off(named_frame({"type": "error", **errors.told_to_fail().document()}))
        return
    progress.finished("stop")
    usage = Usage(len(request.tokens), len(request.tokens)).input_output()
    await stream.done(named_frame({"type": "speech.audio.done", "usage": usage}) if request.events else b"")


async def _send_sound(stream: AnswerStream, request: SpeechRequest, sound: bytes) -> None:
    if request.events:
        coded = base64.b64encode(sound).decode("ascii")
        await stream.raw(named_frame({"type": "speech.audio.delta", "audio": coded}))
    else:
        await stream.raw(sound)
