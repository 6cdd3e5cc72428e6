"""Somebody between agents and their controller: hears what they say and may answer in its stead. TLS would not let it
there; it is as if it had the listener's key, so that what is signed has to hold by itself."""

from typing import Final

import attrs

from lunanexa_adapters.asgi.node_plane import KEY_ID_HEADER, SIGNATURE_HEADER
from lunanexa_core.ids import NodeId
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_ports.asgi import AsgiApplication, Message, Receive, Scope, Send
from lunanexa_ports.http_client import Headers

_SIGNED: Final = (KEY_ID_HEADER.encode(), SIGNATURE_HEADER.encode())


@attrs.define
class Said:
    """What one side said: an answer, or with ``status`` 0 a question."""

    headers: Headers
    body: bytes = b""
    status: int = 0

    @property
    def document(self) -> SignedDocument:
        """The body as it was signed."""
        key_id, signature = (dict(self.headers)[name].decode() for name in _SIGNED)
        return SignedDocument(payload=self.body, key_id=key_id, signature=bytes.fromhex(signature))


def signed(document: SignedDocument) -> Said:
    """The answer that gives a document."""
    told = (document.key_id.encode(), document.signature.hex().encode())
    return Said(tuple(zip(_SIGNED, told, strict=True)), document.payload, 200)


class Between:
    """Its :meth:`before` stands before a controller's application for nodes, on the ways from the nodes' machines."""

    def __init__(self) -> None:
        self._asked: dict[str, list[Said]] = {}
        self._answered: dict[str, list[Said]] = {}
        self._lies: dict[str, Said] = {}
        self._lied: dict[str, int] = {}

    def heartbeats(self, node: NodeId) -> list[SignedDocument]:
        """All that the node sent, in order."""
        return [said.document for said in self._asked.get(_path(node, "heartbeat"), [])]

    def answers(self, node: NodeId) -> list[Said]:
        """What its heartbeats were answered, in order."""
        return [said for said in self._answered.get(_path(node, "heartbeat"), []) if said.status == 200]

    def documents(self, node: NodeId) -> list[SignedDocument]:
        """What it was given to follow, in order."""
        return [said.document for said in self._answered.get(_path(node, "desired"), []) if said.status == 200]

    def lie(self, node: NodeId, verb: str, lie: Said | None) -> None:
        """From now on this answers the node, and the controller hears nothing of it; ``None``: no more."""
        self._lied[_path(node, verb)] = 0
        if lie is None:
            del self._lies[_path(node, verb)]
        else:
            self._lies[_path(node, verb)] = lie

    def lied(self, node: NodeId, verb: str) -> int:
        """How often the present lie was told."""
        return self._lied.get(_path(node, verb), 0)

    def before(self, app: AsgiApplication) -> AsgiApplication:
        """The application as nodes find it."""

        async def between(scope: Scope, receive: Receive, send: Send, /) -> None:
            path = scope["path"]
            if scope["client"][0] not in path.split("/"):  # what others say in a node's name
                await app(scope, receive, send)
                return
            lie = self._lies.get(path)
            if lie is None:
                await app(scope, self._hearing(scope, receive), self._seeing(path, send))
                return
            self._lied[path] += 1
            await send({"type": "http.response.start", "status": lie.status, "headers": list(lie.headers)})
            await send({"type": "http.response.body", "body": lie.body})

        return between

    def _hearing(self, scope: Scope, receive: Receive) -> Receive:
        asked = Said(tuple(scope["headers"]))

        async def hearing() -> Message:
            message = await receive()
            asked.body += message.get("body", b"")
            if message["type"] == "http.request" and not message.get("more_body", False):
                self._asked.setdefault(scope["path"], []).append(asked)
            return message

        return hearing

    def _seeing(self, path: str, send: Send) -> Send:
        async def seeing(message: Message) -> None:
            if message["type"] == "http.response.start":
                said = Said(tuple(message["headers"]), status=message["status"])
                self._answered.setdefault(path, []).append(said)
            elif message["type"] == "http.response.body":
                self._answered[path][-1].body += message["body"]
            await send(message)

        return seeing


def _path(node: NodeId, verb: str) -> str:
    return f"/node/v1/{node}/{verb}"
