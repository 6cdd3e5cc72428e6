"""``/v1/workloads`` and ``/v1/capabilities``: canonical workloads over HTTP."""

from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import parse_qsl

from lunanexa_adapters.asgi.call import read_call
from lunanexa_adapters.asgi.envelope_sinks import EventSink, UnarySink
from lunanexa_adapters.asgi.errors import UNAVAILABLE, invalid, method_not_allowed, not_found
from lunanexa_adapters.asgi.exchange import Exchange
from lunanexa_adapters.asgi.headers import bearer
from lunanexa_core.canonical import JsonValue
from lunanexa_core.ids import is_identifier
from lunanexa_core.outcomes import Refusal
from lunanexa_ports.clock import Clock
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.gateway import InferenceGateway, WorkloadCall
from lunanexa_ports.workloads import WorkloadPlane

PREFIX: Final = "/v1/workloads"
CAPABILITIES: Final = "/v1/capabilities"
LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 500
PATHS: Final = frozenset((PREFIX, PREFIX + ":stream", PREFIX + "/{id}", PREFIX + "/{id}:cancel", CAPABILITIES))


class WorkloadRoutes:
    """Answers what :meth:`owns`."""

    def __init__(
        self, *, gateway: InferenceGateway, workloads: WorkloadPlane, clock: Clock, body_limit_bytes: int
    ) -> None:
        self._gateway = gateway
        self._workloads = workloads
        self._clock = clock
        self._limit_bytes = body_limit_bytes

    @staticmethod
    def owns(path: str) -> bool:
        """Whether a path is served here, be it with 404."""
        return path in (PREFIX, PREFIX + ":stream", CAPABILITIES) or path.startswith(PREFIX + "/")

    async def serve(self, exchange: Exchange) -> None:
        """Answers one exchange."""
        method, path = exchange.method, exchange.path
        read = method in ("GET", "HEAD")
        match path:
            case "/v1/workloads" if method == "POST":
                await self._submit(exchange, stream=False)
            case "/v1/workloads" if read:
                await self._list(exchange)
            case "/v1/workloads:stream" if method == "POST":
                await self._submit(exchange, stream=True)
            case "/v1/capabilities" if read:
                await self._tell(exchange, self._workloads.capabilities)
            case _:
                await self._one(exchange, path.removeprefix(PREFIX + "/"), read=read)

    async def _one(self, exchange: Exchange, rest: str, *, read: bool) -> None:
        allowed = {PREFIX: "GET, HEAD, POST", PREFIX + ":stream": "POST", CAPABILITIES: "GET, HEAD"}.get(exchange.path)
        # An identifier may hold a colon: only the verb at the end is taken off.
        name, verb = (rest.removesuffix(":cancel"), "cancel") if rest.endswith(":cancel") else (rest, "")
        if allowed is None and not is_identifier(name):
            await exchange.refuse_unread(not_found(exchange.path))
        elif allowed is None and verb == "cancel" and exchange.method == "POST":
            await self._tell(exchange, lambda key: self._workloads.cancel(key, name))
        elif allowed is None and not verb and read:
            await self._tell(exchange, lambda key: self._workloads.workload(key, name))
        else:
            allowed = allowed or ("POST" if verb else "GET, HEAD")
            await exchange.refuse_unread(method_not_allowed(exchange.method, allowed), [("allow", allowed)])

    async def _submit(self, exchange: Exchange, *, stream: bool) -> None:
        received_mono_ms = self._clock.now().mono_ms
        found = await read_call(exchange, self._gateway, self._limit_bytes)
        if found is None:
            return
        call = WorkloadCall(
            request=exchange.request,
            api_key=found.api_key,
            terms=found.terms,
            body=found.body,
            stream=stream,
            received_mono_ms=received_mono_ms,
        )
        sink = EventSink(exchange) if stream else UnarySink(exchange)
        await exchange.run(lambda: self._gateway.submit(call, sink))

    async def _list(self, exchange: Exchange) -> None:
        asked = dict(parse_qsl(exchange.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
        limit = asked.get("limit", str(LIMIT_DEFAULT))
        if not (limit.isascii() and limit.isdigit() and len(limit) <= 3 and 1 <= int(limit) <= LIMIT_MAX):
            await exchange.refuse_unread(invalid(f"'limit' must be from 1 to {LIMIT_MAX}.", "limit"))
            return
        cursor = asked.get("cursor")
        if cursor is not None and not is_identifier(cursor):
            await exchange.refuse_unread(invalid("'cursor' must be the next_cursor of a page.", "cursor"))
            return
        await self._tell(exchange, lambda key: self._workloads.workloads(key, int(limit), cursor))

    async def _tell(self, exchange: Exchange, ask: Callable[[str | None], Awaitable[JsonValue | Refusal]]) -> None:
        key = bearer(exchange.scope)
        if isinstance(key, Refusal):
            await exchange.refuse_unread(key)
            return
        try:
            found = await ask(key)
        except PortUnavailable:
            found = UNAVAILABLE
        if isinstance(found, Refusal):
            await exchange.refuse_unread(found)
        else:
            await exchange.send_json(200, found)
