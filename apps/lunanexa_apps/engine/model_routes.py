"""The routes that a model answers: one answer's path from its request to its last byte.

Here a request is read and planned; ``turns`` gives it a slot, ``text_answers`` and ``speech_answers`` tell what comes
of it. The faults that leave nothing to tell are committed here.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from lunanexa_apps.engine import errors
from lunanexa_apps.engine.answers import plan_answer
from lunanexa_apps.engine.audio_requests import (
    SpeechRequest,
    TranscriptRequest,
    plan_transcript,
    read_speech,
    read_transcript,
)
from lunanexa_apps.engine.embedding_request import EmbeddingRequest, count_inputs, embedding_document, read_embeddings
from lunanexa_apps.engine.errors import ApiError
from lunanexa_apps.engine.exchange import Exchange
from lunanexa_apps.engine.faults import FaultKind, Faults, Where
from lunanexa_apps.engine.fields import Json, parse_object
from lunanexa_apps.engine.frames import encode
from lunanexa_apps.engine.language_model import LanguageModel
from lunanexa_apps.engine.metrics import Progress
from lunanexa_apps.engine.requests import TextRequest, read_chat, read_completion
from lunanexa_apps.engine.rerank import RerankRequest, count_documents, read_rerank, rerank_document
from lunanexa_apps.engine.settings import EngineSettings
from lunanexa_apps.engine.slots import Place
from lunanexa_apps.engine.speech_answers import say
from lunanexa_apps.engine.text_answers import tell
from lunanexa_apps.engine.turns import Turns
from lunanexa_apps.engine.typed_requests import read_message, read_response

Ready: TypeAlias = Callable[[], Awaitable[None]]
Prepare: TypeAlias = Callable[[Exchange, bytes], Ready | ApiError]
"""Reads a body: what answers it, or why nothing does."""
_Answer: TypeAlias = Callable[[Exchange], Awaitable[None]] | ApiError
"""What answers, or why nothing does."""


class ModelRoutes:
    """``end_process`` is called with an exit status by the fault that ends the process."""

    def __init__(
        self,
        settings: EngineSettings,
        model: LanguageModel,
        *,
        turns: Turns,
        faults: Faults,
        now_s: Callable[[], int],
        new_id: Callable[[], str],
        end_process: Callable[[int], None] | None,
    ) -> None:
        self._settings = settings
        self._model = model
        self._turns = turns
        self._faults = faults
        self._now_s = now_s
        self._new_id = new_id
        self._end_process = end_process
        self.posts: dict[str, Prepare] = {
            "/v1/chat/completions": self._json(lambda values: self._text(read_chat(values))),
            "/v1/completions": self._json(lambda values: self._text(read_completion(values))),
            "/v1/responses": self._json(lambda values: self._text(read_response(values))),
            "/v1/messages": self._json(lambda values: self._text(read_message(values))),
            "/v1/embeddings": self._json(lambda values: self._embed(read_embeddings(values))),
            "/v1/rerank": self._json(lambda values: self._rerank(read_rerank(values))),
            "/v1/audio/speech": self._json(lambda values: self._speak(read_speech(values, settings))),
            "/v1/audio/transcriptions": partial(self._sound, "transcribe"),
            "/v1/audio/translations": partial(self._sound, "translate"),
        }

    def _json(self, plan: "Callable[[dict[str, Json]], _Answer]") -> Prepare:
        def prepare(_exchange: Exchange, body: bytes) -> "Ready | ApiError":
            values = parse_object(body)
            if isinstance(values, ApiError):
                return values
            return partial(self._serve, _exchange, lambda: plan(values))

        return prepare

    def _sound(self, task: str, exchange: Exchange, body: bytes) -> Ready | ApiError:
        content_type = (exchange.header(b"content-type") or b"").decode("latin-1")
        return partial(self._serve, exchange, lambda: self._transcribe(read_transcript(body, content_type), task))

    async def _serve(self, exchange: Exchange, plan: Callable[[], _Answer]) -> None:
        exchange.struck = self._faults.strike(Where.REQUEST)
        if await self._struck_down(exchange):
            return
        answer = plan()
        if isinstance(answer, ApiError):
            await exchange.refuse(answer)
        else:
            await answer(exchange)

    async def _struck_down(self, exchange: Exchange) -> bool:
        """Commits the faults that leave nothing to answer; whether there was one."""
        struck = exchange.struck
        if FaultKind.LEAK in struck:
            self._faults.leak(struck[FaultKind.LEAK])
        if FaultKind.EXIT in struck or FaultKind.CLOSE in struck:
            if FaultKind.EXIT in struck and self._end_process is not None:
                self._end_process(struck[FaultKind.EXIT])
            await exchange.abort()
        elif FaultKind.REFUSE in struck:
            await exchange.refuse(errors.told_to_refuse(struck[FaultKind.REFUSE]))
        else:
            return False
        return True

    def _unknown(self, model: str) -> ApiError | None:
        return None if model in self._settings.names else errors.unknown_model(model)

    def _text(self, request: TextRequest | ApiError) -> _Answer:
        if isinstance(request, ApiError):
            return request
        answer = self._unknown(request.options.model) or plan_answer(
            request, self._settings, self._model, created=self._now_s(), new_id=self._new_id
        )
        return answer if isinstance(answer, ApiError) else partial(tell, self._turns, answer)

    def _transcribe(self, request: TranscriptRequest | ApiError, task: str) -> _Answer:
        if isinstance(request, ApiError):
            return request
        answer = self._unknown(request.model) or plan_transcript(request, task, self._settings, self._model)
        return answer if isinstance(answer, ApiError) else partial(tell, self._turns, answer)

    def _embed(self, request: EmbeddingRequest | ApiError) -> _Answer:
        if isinstance(request, ApiError):
            return request
        inputs = self._unknown(request.model) or count_inputs(request, self._settings)
        if isinstance(inputs, ApiError):
            return inputs
        return partial(self._compute, inputs, partial(embedding_document, request, inputs, self._settings))

    def _rerank(self, request: RerankRequest | ApiError) -> _Answer:
        if isinstance(request, ApiError):
            return request
        counted = self._unknown(request.model) or count_documents(request, self._settings)
        if isinstance(counted, ApiError):
            return counted
        made = partial(rerank_document, request, counted, self._settings, self._new_id())
        return partial(self._compute, counted, made)

    async def _compute(
        self, counted: list[list[str]], make: Callable[[], Awaitable[dict[str, object]]], exchange: Exchange
    ) -> None:
        """An answer that is one token's work."""
        used = sum(map(len, counted))

        async def work(place: Place, progress: Progress) -> None:
            async with self._turns.slots.hold(place, used):
                await self._turns.begin(progress, used).token_due()
                document = await make()
            progress.finished("stop")
            await exchange.send_answer(encode(document))

        await self._turns.take(exchange, used, work)

    def _speak(self, request: SpeechRequest | ApiError) -> _Answer:
        if isinstance(request, ApiError):
            return request
        return self._unknown(request.model) or partial(say, self._turns, request)
