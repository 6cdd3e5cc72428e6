"""``/node/v1``: what node agents say, as a plain ASGI application. Bodies are passed on as the bytes that were signed.

A fleet reports all the time, so that a report costs little here: what the head alone decides is refused unread, and
only a node that waits for its desired state has a task that waits for its departure. What is asked without a
certificate may be asked by anybody: there is little in each, and the server keeps few connections of who shows none.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl

from lunanexa_adapters.asgi.body_room import NO_ROOM, BodyRoom
from lunanexa_adapters.asgi.errors import UNAVAILABLE, invalid, method_not_allowed, not_found
from lunanexa_adapters.asgi.exchange import Departed, Exchange
from lunanexa_adapters.asgi.headers import is_number, request_id, text_header, unreadable
from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_core.identity.checks import NO_CERTIFICATE
from lunanexa_core.ids import NodeId, is_identifier
from lunanexa_core.outcomes import Refusal
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_ports.asgi import TLS, AsgiApplication, Receive, Scope, Send
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.ids import IdSource
from lunanexa_ports.node_plane import NodePlane

PREFIX: Final = "/node/v1"
KEY_ID_HEADER: Final = "x-lunanexa-key-id"
SIGNATURE_HEADER: Final = "x-lunanexa-signature"
WAIT_MS_MAX: Final = 60_000
BODY_BYTES_MAX: Final = 1024 * 1024
DOCUMENT_BYTES_MAX: Final = 4 * 1024 * 1024
"""No agent follows a longer one."""
STRANGER_BODY_BYTES_MAX: Final = 64 * 1024
BODIES_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of all requests in progress together."""
_AUTHORITIES: Final = "authorities"
_JSON: Final = b"application/json"
_METHODS: Final = {
    "enrol": ("POST",),
    "challenge": ("POST",),
    "renew": ("POST",),
    "heartbeat": ("PUT",),
    "document": ("PUT",),
    "desired": ("GET", "HEAD"),
}
_READING: Final = ("GET", "HEAD")
_T = TypeVar("_T")
_Ask: TypeAlias = Callable[[], Awaitable[bytes | Refusal]]


class _Refused(Exception):  # an ending, not an error
    """What the head of a request alone decides."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class NodePlaneApp(AsgiApplication):
    """The routes over ``plane``, which verifies before it reads. Who shows a certificate is the connection's word: the
    server's, in the scope, and no header's."""

    def __init__(self, plane: NodePlane, ids: IdSource) -> None:
        self._plane = plane
        self._ids = ids
        self._room = BodyRoom(BODIES_BYTES_MAX)
        self._showing: set[str] = set()
        """Who hands in a document."""

    @property
    def routes(self) -> frozenset[tuple[str, str]]:
        """Method and path of each, as documents write them."""
        verbs = {(methods[0].lower(), f"{PREFIX}/{{node}}/{verb}") for verb, methods in _METHODS.items()}
        return frozenset({("get", f"{PREFIX}/{_AUTHORITIES}"), *verbs})

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
        is_authorities = exchange.path == f"{PREFIX}/{_AUTHORITIES}"
        methods = _READING if is_authorities else _METHODS.get(verb)
        if methods is None or not name:
            raise _Refused(not_found(exchange.path))
        if exchange.method not in methods:
            allowed = ", ".join(methods)
            await exchange.refuse_unread(method_not_allowed(exchange.method, allowed), [("allow", allowed)])
            return
        if is_authorities:
            await self._answer(exchange, self._plane.authorities)
        else:
            await self._serve_node(exchange, _node(name), verb)

    async def _serve_node(self, exchange: Exchange, node: NodeId, verb: str) -> None:
        plane, peer = self._plane, _peer(exchange.scope)
        match verb:
            case "challenge":
                await self._answer(exchange, lambda: plane.challenge(node))
            case "enrol":
                document = await self._document(exchange, STRANGER_BODY_BYTES_MAX)
                await self._answer(exchange, lambda: plane.enrol(node, document))
            case "renew":
                document = await self._document(exchange, STRANGER_BODY_BYTES_MAX)
                await self._answer(exchange, lambda: plane.renew(node, peer, document))
            case _ if peer is None:
                raise _Refused(NO_CERTIFICATE)
            case "heartbeat":
                document = await self._document(exchange, BODY_BYTES_MAX)
                await self._answer(exchange, lambda: plane.heartbeat(node, peer, document))
            case "document":
                with self._alone(peer):
                    document = await self._document(exchange, DOCUMENT_BYTES_MAX)
                    await self._answer(exchange, lambda: plane.show(node, peer, document))
            case _:
                after, wait_ms = _query(exchange.scope)
                await exchange.run(lambda: self._wait(exchange, node, peer, after, wait_ms))

    @contextmanager
    def _alone(self, peer: PeerCertificate) -> Iterator[None]:
        """One at a time of a party: as many as its connections, and one that means harm would fill the room that is
        for everybody's heartbeats."""
        if peer.identity in self._showing:
            raise _Refused(NO_ROOM)
        self._showing.add(peer.identity)
        try:
            yield
        finally:
            self._showing.remove(peer.identity)

    async def _document(self, exchange: Exchange, limit_bytes: int) -> SignedDocument:
        key_id, signature = _signed(exchange.scope)
        body = _known(await exchange.body(limit_bytes))
        return SignedDocument(payload=body, key_id=key_id, signature=signature)

    async def _answer(self, exchange: Exchange, ask: _Ask) -> None:
        try:
            answer = await ask()
        except PortUnavailable:
            answer = UNAVAILABLE
        if isinstance(answer, Refusal):
            await exchange.refuse(answer)
        else:
            await exchange.send_whole(200, _JSON, answer)

    async def _wait(
        self, exchange: Exchange, node: NodeId, peer: PeerCertificate | None, after: tuple[int, int], wait_ms: int
    ) -> None:
        try:
            document = await self._plane.desired(node, peer, after, wait_ms)
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


def _peer(scope: Scope) -> PeerCertificate | None:
    """Who the server found at the other end of the connection."""
    peer = scope.get("extensions", {}).get(TLS, {}).get("peer")
    assert peer is None or isinstance(peer, PeerCertificate), type(peer)
    return peer


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
