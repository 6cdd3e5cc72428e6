"""The data plane: OpenAI's routes and the probes, as a plain ASGI application over driving ports.

Bodies are read within a limit and handed to the gateway unparsed; a task always waits for the client's
departure while an answer is made. Source of the routes: https://platform.openai.com/docs/api-reference
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

from lunanexa_adapters.asgi.body_room import BodyRoom
from lunanexa_adapters.asgi.call import FORM_TYPE, JSON_TYPE, read_call
from lunanexa_adapters.asgi.errors import UNAVAILABLE, invalid, method_not_allowed, not_found
from lunanexa_adapters.asgi.exchange import AsgiSink, Departed, Exchange
from lunanexa_adapters.asgi.headers import bearer, request_id
from lunanexa_adapters.asgi.openapi import openapi_document
from lunanexa_adapters.asgi.routes import ROUTES
from lunanexa_adapters.asgi.workloads import PATHS, WorkloadRoutes
from lunanexa_core.contract.envelope import CONTRACT
from lunanexa_core.openai.request_rules import request_rules
from lunanexa_core.outcomes import TABLE, Outcome, Refusal, error_document
from lunanexa_core.workload import Dialect
from lunanexa_ports.asgi import AsgiApplication, Receive, Scope, Send
from lunanexa_ports.clock import Clock
from lunanexa_ports.dispatch import ModelCard
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.gateway import InferenceCall, InferenceGateway
from lunanexa_ports.ids import IdSource
from lunanexa_ports.metrics import Metrics
from lunanexa_ports.operator import Health
from lunanexa_ports.workloads import WorkloadPlane

OWNER: Final = "lunanexa"
_MEDIA_BYTES: Final = 32 * 1024 * 1024
_TEXT_BYTES: Final = 1024 * 1024
_DIALECTS: Final = {dialect.path: dialect for dialect in Dialect}
_UNSERVED: Final = frozenset(("assistants", "audio", "batches", "files", "fine_tuning", "images", "messages")) | {
    *("moderations", "realtime", "rerank", "responses", "score", "threads", "tokenize", "uploads", "vector_stores"),
    "videos",
}
"""First segments of the dialects that engines speak elsewhere and that are not served here."""


@attrs.frozen(kw_only=True)
class DataPlaneSettings:
    """``body_limits``: bytes by dialect; those that may carry images or sound have more. ``bodies_bytes_max``: of all
    requests in progress together."""

    version: str
    body_limits: Mapping[Dialect, int] = MappingProxyType(
        {dialect: _MEDIA_BYTES if request_rules(dialect).media else _TEXT_BYTES for dialect in Dialect}
    )
    envelope_bytes_max: int = _MEDIA_BYTES
    bodies_bytes_max: int = 1024 * 1024 * 1024


class DataPlane(AsgiApplication):
    """Answers every HTTP scope that reaches it, also with 404."""

    def __init__(
        self,
        *,
        gateway: InferenceGateway,
        workloads: WorkloadPlane,
        health: Health,
        metrics: Metrics,
        ids: IdSource,
        clock: Clock,
        settings: DataPlaneSettings,
    ) -> None:
        self._gateway = gateway
        self._health = health
        self._metrics = metrics
        self._ids = ids
        self._clock = clock
        self._settings = settings
        self._room = BodyRoom(settings.bodies_bytes_max)
        self._document: bytes | None = None
        self._workloads = WorkloadRoutes(
            gateway=gateway, workloads=workloads, clock=clock, body_limit_bytes=settings.envelope_bytes_max
        )
        self._gets = {
            "/health": self._alive,
            "/ready": self._ready,
            "/version": self._version,
            "/metrics": self._show_metrics,
            "/openapi.json": self._openapi,
            "/v1/models": self._models,
        }

    @property
    def paths(self) -> frozenset[str]:
        """What is served here."""
        return frozenset((*self._gets, "/v1/models/{id}", *PATHS, *_DIALECTS))

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        exchange = Exchange(scope, receive, send, request_id(scope, self._ids), self._room)
        try:
            await self._serve(exchange)
        except Departed:
            return
        finally:
            exchange.let_go()

    async def _serve(self, exchange: Exchange) -> None:
        path = exchange.path
        dialect = _DIALECTS.get(path)
        if dialect is not None:
            if exchange.method == "POST":
                await self._infer(exchange, dialect)
            else:
                await _wrong_method(exchange, "POST")
        elif self._workloads.owns(path):
            await self._workloads.serve(exchange)
        elif path in self._gets or path.startswith("/v1/models/"):
            if exchange.method not in ("GET", "HEAD"):
                await _wrong_method(exchange, "GET, HEAD")
            elif path in self._gets:
                await self._gets[path](exchange)
            else:
                await self._model(exchange, path.removeprefix("/v1/models/"))
        elif path.startswith("/v1/") and path.split("/")[2] in _UNSERVED:
            await exchange.refuse_unread(
                Refusal(outcome=Outcome.UNSUPPORTED_ENDPOINT, message=f"{path[:200]} is not served here.")
            )
        elif path == "/":
            told = "There is no page here: the API is below /v1, and GET /openapi.json lists all of it."
            await exchange.refuse_unread(Refusal(outcome=Outcome.NOT_FOUND, message=told))
        elif path == "/v1/stream":
            await exchange.refuse_unread(invalid("This is a WebSocket address: upgrade the connection.", "upgrade"))
        else:
            await exchange.refuse_unread(not_found(path, "/v1" + path if "/v1" + path in self.paths else None))

    async def _infer(self, exchange: Exchange, dialect: Dialect) -> None:
        received_mono_ms = self._clock.now().mono_ms
        media_type = FORM_TYPE if request_rules(dialect).form else JSON_TYPE
        found = await read_call(exchange, self._gateway, self._settings.body_limits[dialect], media_type)
        if found is None:
            return
        call = InferenceCall(
            request=exchange.request,
            dialect=dialect,
            api_key=found.api_key,
            terms=found.terms,
            body=found.body,
            content_type=found.content_type,
            received_mono_ms=received_mono_ms,
        )
        await exchange.run(lambda: self._gateway.infer(call, AsgiSink(exchange)))

    async def _models(self, exchange: Exchange) -> None:
        cards = await self._cards(exchange)
        if cards is not None:
            await exchange.send_json(200, {"object": "list", "data": [_card(card) for card in cards]})

    async def _model(self, exchange: Exchange, name: str) -> None:
        cards = await self._cards(exchange)
        if cards is None:
            return
        card = next((card for card in cards if card.alias == name), None)
        if card is not None:
            await exchange.send_json(200, _card(card))
            return
        message = f"The model {name[:256]!r} does not exist or this key may not use it."
        await exchange.refuse(Refusal(outcome=Outcome.MODEL_NOT_FOUND, message=message, param="model"))

    async def _cards(self, exchange: Exchange) -> tuple[ModelCard, ...] | None:
        """What the key may call; ``None`` when a refusal was sent."""
        key = bearer(exchange.scope)
        if isinstance(key, Refusal):
            await exchange.refuse(key)
            return None
        try:
            cards = await self._gateway.models(key)
        except PortUnavailable:
            cards = UNAVAILABLE
        if isinstance(cards, Refusal):
            await exchange.refuse(cards)
            return None
        return cards

    async def _alive(self, exchange: Exchange) -> None:
        await exchange.send_json(200, {"status": "ok"})

    async def _ready(self, exchange: Exchange) -> None:
        ready, blockers = self._health.ready()
        document = {"ready": ready, "blockers": list(blockers), "warnings": list(self._health.warnings())}
        if ready:
            await exchange.send_json(200, document)
            return
        codes = {outcome.value: outcome for outcome, row in TABLE.items() if row.http_status == 503}
        outcome = next((codes[code] for code in blockers if code in codes), Outcome.STARTING)
        refusal = Refusal(outcome=outcome, message="The service is not ready.")
        retry_after_s = -(-(refusal.wait_ms or 0) // 1000)
        await exchange.send_json(
            503,
            {**document, **error_document(refusal, exchange.request)},
            [(b"retry-after", b"%d" % retry_after_s), (b"x-should-retry", b"true")],
        )

    async def _version(self, exchange: Exchange) -> None:
        await exchange.send_json(200, {"version": self._settings.version, "contract": CONTRACT})

    async def _openapi(self, exchange: Exchange) -> None:
        if self._document is None:
            document = openapi_document(self._settings.version, ROUTES)
            self._document = json.dumps(document, separators=(",", ":")).encode()
        await exchange.send_whole(200, b"application/json", self._document)

    async def _show_metrics(self, exchange: Exchange) -> None:
        content_type, body = self._metrics.render()
        await exchange.send_whole(200, content_type.encode(), body)


async def _wrong_method(exchange: Exchange, allowed: str) -> None:
    await exchange.refuse_unread(method_not_allowed(exchange.method, allowed), [("allow", allowed)])


def _card(card: ModelCard) -> dict[str, object]:
    return {
        "id": card.alias,
        "object": "model",
        "created": card.created_s,
        "owned_by": OWNER,
        "meta": {"state": card.state, "context_length": card.context_tokens, "capabilities": list(card.dialects)},
    }
