"""The engine as a plain ASGI 3 application: who may call, and what is served.

It needs nothing but Trio: no thread, socket, wall clock or randomness of its own, so it runs in the
simulator as it runs in its process. Time of day and identifiers are arguments.
"""

import hmac
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from lunanexa_apps.engine import errors
from lunanexa_apps.engine.errors import ApiError
from lunanexa_apps.engine.exchange import Exchange
from lunanexa_apps.engine.fault_control import PATH as FAULTS_PATH
from lunanexa_apps.engine.fault_control import arm_as_told
from lunanexa_apps.engine.faults import FaultKind, Faults, Where
from lunanexa_apps.engine.fields import parse_object
from lunanexa_apps.engine.language_model import LanguageModel
from lunanexa_apps.engine.metrics import CONTENT_TYPE, Metrics
from lunanexa_apps.engine.model_routes import ModelRoutes, Prepare, Ready
from lunanexa_apps.engine.pages import listed_names, models_page, slots_page
from lunanexa_apps.engine.settings import OWNER, EngineSettings
from lunanexa_apps.engine.slots import Slots
from lunanexa_apps.engine.turns import Turns
from lunanexa_ports.asgi import AsgiApplication, Receive, Scope, Send

_GetRoute = Callable[[Exchange], Awaitable[None]]


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
        self._settings = settings
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
        routes = ModelRoutes(
            settings,
            model,
            turns=Turns(settings=settings, slots=self._slots, metrics=self._metrics),
            faults=self.faults,
            now_s=now_s,
            new_id=new_id,
            end_process=end_process,
        )
        self._posts: dict[str, Prepare] = routes.posts
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

    async def _serve_post(self, exchange: Exchange, prepare: Prepare) -> None:
        body = await exchange.body(self._settings.max_body_bytes)
        if body is None:
            return
        ready = body if isinstance(body, ApiError) else prepare(exchange, body)
        if isinstance(ready, ApiError):
            await exchange.refuse(ready)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.cancel_on_departure, nursery.cancel_scope)
            await ready()
            nursery.cancel_scope.cancel()

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

    def _arm_faults(self, exchange: Exchange, body: bytes) -> Ready | ApiError:
        values = parse_object(body)
        refusal = values if isinstance(values, ApiError) else arm_as_told(self.faults, values)
        return partial(self._show_faults, exchange) if refusal is None else refusal

    async def _show_metrics(self, exchange: Exchange) -> None:
        held = sum(slot.prompt_tokens + slot.completion_tokens for slot in self._slots.table() if slot)
        cache_use = held / (self._slots.count * self._settings.context_tokens)
        await exchange.send_text(CONTENT_TYPE, self._metrics.render(self._slots, min(cache_use, 1.0)))
