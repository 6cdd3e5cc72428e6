"""``/node/v1``: what node agents say, as a plain ASGI application. Bodies are passed on as the bytes that were signed.

A fleet reports all the time, so that a report costs little here: what the head alone decides is refused unread, and
only a node that waits for its desired state has a task that waits for its departure.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl

from lunanexa_adapters.asgi.body_room import BodyRoom
from lunanexa_adapters.asgi.errors import UNAVAILABLE, invalid, method_not_allowed, not_found
from lunanexa_adapters.asgi.exchange import Departed, Exchange
from lunanexa_adapters.asgi.headers import bearer, is_number, request_id, text_header, unreadable
from lunanexa_core.ids import NodeId, is_identifier
from lunanexa_core.outcomes import Refusal
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_ports.asgi import AsgiApplication, Receive, Scope, Send
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.ids import IdSource
from lunanexa_ports.node_plane import NodePlane

PREFIX: Final = "/node/v1"
KEY_ID_HEADER: Final = "x-lunanexa-key-id"
SIGNATURE_HEADER: Final = "x-lunanexa-signature"
WAIT_MS_MAX: Final = 60_000
BODY_BYTES_MAX: Final = 1024 * 1024
BODIES_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of all requests in progress together."""
_JSON: Final = b"application/json"
_METHODS: Final = {"enrol": ("POST",), "heartbeat": ("PUT",), "desired": ("GET", "HEAD")}
_T = TypeVar("_T")
_Verb: TypeAlias = Callable[[NodeId, str | None, SignedDocument], Awaitable[bytes | Refusal]]


class _Refused(Exception):  # an ending, not an error
    """What the head of a request alone decides."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class NodePlaneApp(AsgiApplication):
    """The routes over ``plane``, which verifies before it reads."""

    def __init__(self, plane: NodePlane, ids: IdSource) -> None:
        self._plane = plane
        self._ids = ids
        self._room = BodyRoom(BODIES_BYTES_MAX)
        self._verbs: dict[str, _Verb] = {"enrol": plane.enrol, "heartbeat": plane.heartbeat}

    @property
    def routes(self) -> frozenset[tuple[str, str]]:
        """Method and path of each, as documents write them."""
        return frozenset((methods[0].lower(), f"{PREFIX}/{{node}}/{verb}") for verb, methods in _METHODS.items())

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        exchange = Exchange(scope, receive, send, request_id(scope, self._ids), self._room)
        try:
            await self._serve(exchange)
        except _Refused as refused:
            await exchange.refuse_unread(refused.refusal)
        except Departed:
            return
        finally:
            exchange.let_go()

    async def _serve(self, exchange: Exchange) -> None:
        _known(unreadable(exchange.scope))
        name, _, verb = exchange.path.removeprefix(PREFIX + "/").partition("/")
        methods = _METHODS.get(verb)
        if methods is None or not name:
            raise _Refused(not_found(exchange.path))
        if exchange.method not in methods:
            allowed = ", ".join(methods)
            await exchange.refuse_unread(method_not_allowed(exchange.method, allowed), [("allow", allowed)])
            return
        node, key = _node(name), _known(bearer(exchange.scope))
        if verb == "desired":
            after, wait_ms = _query(exchange.scope)
            await exchange.run(lambda: self._wait(exchange, node, key, after, wait_ms))
        else:
            await self._tell(exchange, node, key, self._verbs[verb])

    async def _tell(self, exchange: Exchange, node: NodeId, key: str | None, verb: _Verb) -> None:
        key_id, signature = _signed(exchange.scope)
        body = _known(await exchange.body(BODY_BYTES_MAX))
        try:
            answer = await verb(node, key, SignedDocument(payload=body, key_id=key_id, signature=signature))
        except PortUnavailable:
            answer = UNAVAILABLE
        if isinstance(answer, Refusal):
            await exchange.refuse(answer)
        else:
            await exchange.send_whole(200, _JSON, answer)

    async def _wait(
        self, exchange: Exchange, node: NodeId, key: str | None, after: tuple[int, int], wait_ms: int
    ) -> None:
        try:
            document = await self._plane.desired(node, key, after, wait_ms)
        except PortUnavailable:
            document = UNAVAILABLE
        if document is None:
            await exchange.start(204, [])
            await exchange.send_body(b"", more=False)
        elif isinstance(document, Refusal):
            await exchange.refuse(document)
        else:
            signed = [
                (KEY_ID_HEADER.encode(), document.key_id.encode()),
                (SIGNATURE_HEADER.encode(), document.signature.hex().encode()),
            ]
            await exchange.send_whole(200, _JSON, document.payload, signed)


def _known(found: _T | Refusal) -> _T:
    if isinstance(found, Refusal):
        raise _Refused(found)
    return found


def _node(name: str) -> NodeId:
    if not is_identifier(name):
        raise _Refused(invalid("'node' must be an identifier.", "node"))
    return NodeId(name)


def _signed(scope: Scope) -> tuple[str, bytes]:
    """Who signed the body, and the signature."""
    key_id = _known(text_header(scope, KEY_ID_HEADER.encode())) or ""
    if not is_identifier(key_id):
        raise _Refused(invalid(f"'{KEY_ID_HEADER}' must be an identifier.", KEY_ID_HEADER))
    try:
        return key_id, bytes.fromhex(_known(text_header(scope, SIGNATURE_HEADER.encode())) or "-")
    except ValueError:
        raise _Refused(invalid("The signature must be hexadecimal.", SIGNATURE_HEADER)) from None


def _query(scope: Scope) -> tuple[tuple[int, int], int]:
    """What the node has, and how long it waits for more; of what is given twice the first counts."""
    pairs = parse_qsl(scope.get("query_string", b"").decode(), keep_blank_values=True)
    given = dict(reversed(pairs))
    epoch, dot, generation = given.get("after", "0.0").partition(".")
    if not dot or not is_number(epoch) or not is_number(generation):
        raise _Refused(invalid("'after' must be EPOCH.GENERATION.", "after"))
    wait_ms = given.get("wait_ms", "0")
    if not is_number(wait_ms):
        raise _Refused(invalid("'wait_ms' must be a number of milliseconds.", "wait_ms"))
    return (int(epoch), int(generation)), min(int(wait_ms), WAIT_MS_MAX)
