"""An answer in text: generated token by token, told whole or as a stream."""

from functools import partial
from typing import Final

from lunanexa_apps.engine import errors
from lunanexa_apps.engine.answers import Answer
from lunanexa_apps.engine.exchange import Exchange
from lunanexa_apps.engine.frames import encode
from lunanexa_apps.engine.metrics import Progress
from lunanexa_apps.engine.pacing import Pacer
from lunanexa_apps.engine.slots import Place, Slot
from lunanexa_apps.engine.turns import Turns

_TEXT: Final = b"text/plain; charset=utf-8"


async def tell(turns: Turns, answer: Answer, exchange: Exchange) -> None:
    """Generates and tells the answer, in its turn."""
    form = _stream if answer.stream else _tell_whole
    await turns.take(exchange, answer.prompt_tokens, partial(form, turns, exchange, answer))


async def _tell_whole(turns: Turns, exchange: Exchange, answer: Answer, place: Place, progress: Progress) -> None:
    texts: list[str] = []
    async with turns.slots.hold(place, answer.prompt_tokens) as slot:
        pacer = turns.begin(progress, answer.prompt_tokens)
        while answer.generation.finish_reason is None:
            texts.append(await _next_piece(turns, pacer, answer, slot, progress))
    ending = answer.ending("".join(texts))
    progress.finished(ending.finish)
    told = answer.dialect.whole(ending)
    if isinstance(told, str):
        await exchange.send_answer(told.encode(), _TEXT)
    else:
        await exchange.send_answer(encode(told))


async def _stream(turns: Turns, exchange: Exchange, answer: Answer, place: Place, progress: Progress) -> None:
    stream = await exchange.open_events()
    dialect, generation = answer.dialect, answer.generation
    texts: list[str] = []
    last_token = stream.breaks_after
    async with turns.slots.hold(place, answer.prompt_tokens) as slot:
        pacer = turns.begin(progress, answer.prompt_tokens)
        while generation.finish_reason is None and generation.completion_tokens != last_token:
            text = await _next_piece(turns, pacer, answer, slot, progress)
            if not texts:
                for frame in dialect.opening():
                    await stream.raw(frame)
            texts.append(text)
            if text:
                await stream.raw(dialect.piece(text))
    if last_token is not None:
        await stream.break_off(dialect.failure(errors.told_to_fail()))
        return
    ending = answer.ending("".join(texts))
    progress.finished(ending.finish)
    for frame in dialect.ending(ending):
        await stream.raw(frame)
    await stream.done(dialect.last())


async def _next_piece(turns: Turns, pacer: Pacer, answer: Answer, slot: Slot, progress: Progress) -> str:
    await pacer.token_due()
    text = answer.generation.advance()
    if answer.generation.completion_tokens > slot.completion_tokens:
        slot.completion_tokens = answer.generation.completion_tokens
        turns.metrics.token(progress)
    return text
