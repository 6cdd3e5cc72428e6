"""The engine as a plain ASGI 3 application: who may call, what is served, and one answer's path.

It needs nothing but Trio: no thread, socket, wall clock or randomness of its own, so it runs in the
simulator as it runs in its process. Time of day and identifiers are arguments.
"""

import hmac
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from lunanexa_apps.engine import errors
from lunanexa_apps.engine.answers import Answer, plan_answer
from lunanexa_apps.engine.embedding_request import count_inputs, embedding_document, read_embeddings
from lunanexa_apps.engine.errors import ApiError
from lunanexa_apps.engine.exchange import Exchange, PieceTemplate
from lunanexa_apps.engine.fault_control import PATH as FAULTS_PATH
from lunanexa_apps.engine.fault_control import arm_as_told
from lunanexa_apps.engine.faults import FaultKind, Faults, Where
from lunanexa_apps.engine.fields import Json, parse_object
from lunanexa_apps.engine.language_model import LanguageModel
from lunanexa_apps.engine.metrics import CONTENT_TYPE, Metrics, Progress
from lunanexa_apps.engine.pacing import Pacer
from lunanexa_apps.engine.pages import listed_names, models_page, slots_page
from lunanexa_apps.engine.requests import Read, read_chat, read_completion
from lunanexa_apps.engine.settings import OWNER, EngineSettings
from lunanexa_apps.engine.slots import Place, Slot, Slots
from lunanexa_ports.asgi import AsgiApplication, Receive, Scope, Send

_GetRoute = Callable[[Exchange], Awaitable[None]]
_PostRoute = Callable[[Exchange, "dict[str, Json]"], Awaitable[None]]


class ReferenceEngine(AsgiApplication):
    """``model`` may be shared by engines; everything else belongs to this one. ``end_process`` is called with
    an exit status by the fault that ends the process; without it that fault only closes its connection."""

    def __init__(
        self,
        settings: EngineSettings,
        model: LanguageModel,
        *,
        now_s: Callable[[], int],
        new_id: Callable[[], str],
        end_process: Callable[[int], None] | None = None,
    ) -> None:
        self.faults = Faults(settings.faults)
        self._end_process = end_process
        self._settings = settings
        self._model = model
        self._now_s = now_s
        self._new_id = new_id
        self._started_s = now_s()
        self._slots = Slots(settings.slots, settings.queue)
        self._metrics = Metrics(settings.names[0])
        self._gets: dict[str, _GetRoute] = {
            "/health": self._health,
            "/v1/models": self._models,
            "/metrics": self._show_metrics,
            "/version": self._version,
            "/slots": self._show_slots,
        }
        self._posts: dict[str, _PostRoute] = {
            "/v1/chat/completions": partial(self._serve_model, self._chat),
            "/v1/completions": partial(self._serve_model, self._completion),
            "/v1/embeddings": partial(self._serve_model, self._embed),
        }
        if settings.allow_faults:
            self._gets[FAULTS_PATH] = self._show_faults
            self._posts[FAULTS_PATH] = self._arm_faults

    @property
    def busy(self) -> int:
        """Requests that run or wait."""
        return self._slots.running + self._slots.waiting

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        match scope["type"]:
            case "http":
                try:
                    await self._serve(Exchange(scope, receive, send))
                except* OSError:
                    pass  # what ``send`` raises once the client has gone; all that it held is given back by now
            case "lifespan":
                for phase in ("startup", "shutdown"):
                    await receive()
                    await send({"type": f"lifespan.{phase}.complete"})
            case _:
                await receive()
                await send({"type": "websocket.close", "code": 1000})

    async def _serve(self, exchange: Exchange) -> None:
        if exchange.path != "/health" and not self._may_call(exchange):
            await exchange.refuse(errors.unauthorised())
            return
        get, post = self._gets.get(exchange.path), self._posts.get(exchange.path)
        if get is not None and exchange.method == "GET":
            await get(exchange)
        elif post is not None and exchange.method == "POST":
            await self._serve_post(exchange, post)
        elif get is None and post is None:
            await exchange.refuse(errors.unknown_route(exchange.path))
        else:
            allowed = [method for method, route in (("GET", get), ("POST", post)) if route is not None]
            await exchange.refuse(errors.wrong_method(exchange.method, ", ".join(allowed)))

    def _may_call(self, exchange: Exchange) -> bool:
        if self._settings.api_key is None:
            return True
        scheme, _, key = (exchange.header(b"authorization") or b"").partition(b" ")
        matches = hmac.compare_digest(key.strip(), self._settings.api_key.encode("utf-8"))
        return scheme.lower() == b"bearer" and matches

    async def _serve_post(self, exchange: Exchange, route: _PostRoute) -> None:
        body = await exchange.body(self._settings.max_body_bytes)
        if body is None:
            return
        values = body if isinstance(body, ApiError) else parse_object(body)
        if isinstance(values, ApiError):
            await exchange.refuse(values)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.cancel_on_departure, nursery.cancel_scope)
            await route(exchange, values)
            nursery.cancel_scope.cancel()

    async def _serve_model(self, route: _PostRoute, exchange: Exchange, values: "dict[str, Json]") -> None:
        exchange.struck = self.faults.strike(Where.REQUEST)
        if not await self._struck_down(exchange):
            await route(exchange, values)

    async def _struck_down(self, exchange: Exchange) -> bool:
        """Commits the faults that leave nothing to answer; whether there was one."""
        struck = exchange.struck
        if FaultKind.LEAK in struck:
            self.faults.leak(struck[FaultKind.LEAK])
        if FaultKind.EXIT in struck or FaultKind.CLOSE in struck:
            if FaultKind.EXIT in struck and self._end_process is not None:
                self._end_process(struck[FaultKind.EXIT])
            await exchange.abort()
        elif FaultKind.REFUSE in struck:
            await exchange.refuse(errors.told_to_refuse(struck[FaultKind.REFUSE]))
        else:
            return False
        return True

    async def _hang_where_told(self, exchange: Exchange, place: Place, prompt_tokens: int) -> None:
        if FaultKind.HANG in exchange.struck:
            async with self._slots.hold(place, prompt_tokens):
                await trio.sleep_forever()

    async def _chat(self, exchange: Exchange, values: "dict[str, Json]") -> None:
        await self._generate(exchange, read_chat(values))

    async def _completion(self, exchange: Exchange, values: "dict[str, Json]") -> None:
        await self._generate(exchange, read_completion(values))

    async def _generate(self, exchange: Exchange, request: Read) -> None:
        if isinstance(request, ApiError):
            await exchange.refuse(request)
            return
        answer = self._unknown(request.options.model) or plan_answer(
            request, self._settings, self._model, created=self._now_s(), new_id=self._new_id
        )
        if isinstance(answer, ApiError):
            await exchange.refuse(answer)
            return
        with self._slots.join() as place:
            if place is None:
                await self._refuse_full(exchange)
                return
            with self._metrics.request() as progress:
                await self._hang_where_told(exchange, place, answer.prompt_tokens)
                tell = self._stream if answer.stream else self._tell_whole
                await tell(exchange, answer, place, progress)

    def _unknown(self, model: str) -> ApiError | None:
        return None if model in self._settings.names else errors.unknown_model(model)

    async def _refuse_full(self, exchange: Exchange) -> None:
        self._metrics.rejections += 1
        await exchange.refuse(errors.queue_full(self._slots.waiting))

    async def _tell_whole(self, exchange: Exchange, answer: Answer, place: Place, progress: Progress) -> None:
        texts: list[str] = []
        async with self._slots.hold(place, answer.prompt_tokens) as slot:
            pacer = self._begin(progress, answer.prompt_tokens)
            while answer.generation.finish_reason is None:
                texts.append(await self._next_piece(pacer, answer, slot, progress))
        finish = answer.generation.finish_reason
        assert finish is not None
        progress.finished(finish)
        await exchange.send_answer(answer.dialect.whole("".join(texts), finish, answer.usage()))

    async def _stream(self, exchange: Exchange, answer: Answer, place: Place, progress: Progress) -> None:
        stream = await exchange.open_events()
        dialect, generation = answer.dialect, answer.generation
        piece = PieceTemplate(dialect.piece(PieceTemplate.mark()))
        opened = False
        last_token = stream.breaks_after
        async with self._slots.hold(place, answer.prompt_tokens) as slot:
            pacer = self._begin(progress, answer.prompt_tokens)
            while generation.finish_reason is None and generation.completion_tokens != last_token:
                text = await self._next_piece(pacer, answer, slot, progress)
                if not opened:
                    opened = True
                    for document in dialect.opening():
                        await stream.event(document)
                if text:
                    await stream.raw(piece.event(text))
        if last_token is not None:
            await stream.break_off()
            return
        finish = generation.finish_reason
        assert finish is not None
        progress.finished(finish)
        await stream.event(dialect.closing(finish))
        if answer.include_usage:
            await stream.event(dialect.usage(answer.usage()))
        await stream.done()

    def _begin(self, progress: Progress, prompt_tokens: int) -> Pacer:
        self._metrics.started(progress, prompt_tokens)
        return Pacer(ttft_ms=self._settings.ttft_ms, itl_ms=self._settings.itl_ms)

    async def _next_piece(self, pacer: Pacer, answer: Answer, slot: Slot, progress: Progress) -> str:
        await pacer.token_due()
        text = answer.generation.advance()
        if answer.generation.completion_tokens > slot.completion_tokens:
            slot.completion_tokens = answer.generation.completion_tokens
            self._metrics.token(progress)
        return text

    async def _embed(self, exchange: Exchange, values: "dict[str, Json]") -> None:
        request = read_embeddings(values)
        if isinstance(request, ApiError):
            await exchange.refuse(request)
            return
        inputs = self._unknown(request.model) or count_inputs(request, self._settings)
        if isinstance(inputs, ApiError):
            await exchange.refuse(inputs)
            return
        with self._slots.join() as place:
            if place is None:
                await self._refuse_full(exchange)
                return
            with self._metrics.request() as progress:
                used = sum(map(len, inputs))
                await self._hang_where_told(exchange, place, used)
                async with self._slots.hold(place, used):
                    await self._begin(progress, used).token_due()
                    document = await embedding_document(request, inputs, self._settings)
                progress.finished("stop")
                await exchange.send_answer(document)

    async def _health(self, exchange: Exchange) -> None:
        status = self.faults.strike(Where.HEALTH).get(FaultKind.UNHEALTHY)
        if status is None:
            await exchange.send_json(200, {"status": "ok"})
        else:
            await exchange.refuse(errors.told_to_refuse(status))

    async def _version(self, exchange: Exchange) -> None:
        await exchange.send_json(200, {"version": self._settings.version, "engine": OWNER})

    async def _models(self, exchange: Exchange) -> None:
        names = listed_names(self._settings.names, self.faults.strike(Where.MODELS))
        await exchange.send_json(200, models_page(self._settings, names, self._started_s))

    async def _show_slots(self, exchange: Exchange) -> None:
        await exchange.send_json(200, slots_page(self._settings, self._slots))

    async def _show_faults(self, exchange: Exchange) -> None:
        await exchange.send_json(200, self.faults.document())

    async def _arm_faults(self, exchange: Exchange, values: "dict[str, Json]") -> None:
        refusal = arm_as_told(self.faults, values)
        if refusal is None:
            await self._show_faults(exchange)
        else:
            await exchange.refuse(refusal)

    async def _show_metrics(self, exchange: Exchange) -> None:
        held = sum(slot.prompt_tokens + slot.completion_tokens for slot in self._slots.table() if slot)
        cache_use = held / (self._slots.count * self._settings.context_tokens)
        await exchange.send_text(CONTENT_TYPE, self._metrics.render(self._slots, min(cache_use, 1.0)))
