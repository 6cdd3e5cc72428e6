"""``/node/v1``: what node agents say. Bodies are passed on as the bytes that were signed."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from quart import Blueprint, Response, request

from lunanexa_adapters.asgi.errors import invalid
from lunanexa_adapters.asgi.quart_answers import Answers, Refused, identifier, is_number, own_header, read_body, secret
from lunanexa_core.ids import NodeId
from lunanexa_core.outcomes import Refusal
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_ports.node_plane import NodePlane

KEY_ID_HEADER: Final = "x-lunanexa-key-id"
SIGNATURE_HEADER: Final = "x-lunanexa-signature"
WAIT_MS_MAX: Final = 60_000
_Verb: TypeAlias = Callable[[NodeId, str | None, SignedDocument], Awaitable[bytes | Refusal]]


def node_routes(plane: NodePlane, answers: Answers) -> Blueprint:
    """The routes over ``plane``, which verifies before it reads."""
    routes = Blueprint("node", __name__, url_prefix="/node/v1")

    async def tell(verb: _Verb, node: str) -> Response:
        bearer = secret()
        document = _signed(await read_body())
        return answers.reply_bytes(await verb(_node(node), bearer, document))

    @routes.post("/<node>/enrol")
    async def enrol(node: str) -> Response:
        return await tell(plane.enrol, node)

    @routes.put("/<node>/heartbeat")
    async def heartbeat(node: str) -> Response:
        return await tell(plane.heartbeat, node)

    @routes.get("/<node>/desired")
    async def desired(node: str) -> Response:
        document = await plane.desired(_node(node), secret(), _after(), _wait_ms())
        if document is None:
            return Response(b"", status=204)
        if isinstance(document, Refusal):
            return answers.refuse(document)
        response = answers.reply_bytes(document.payload)
        response.headers[KEY_ID_HEADER] = document.key_id
        response.headers[SIGNATURE_HEADER] = document.signature.hex()
        return response

    return routes


def _node(node: str) -> NodeId:
    return NodeId(identifier(node, "node"))


def _signed(payload: bytes) -> SignedDocument:
    key_id = identifier(own_header(KEY_ID_HEADER) or "", KEY_ID_HEADER)
    try:
        signature = bytes.fromhex(own_header(SIGNATURE_HEADER) or "-")
    except ValueError:
        raise Refused(invalid("The signature must be hexadecimal.", SIGNATURE_HEADER)) from None
    return SignedDocument(payload=payload, key_id=key_id, signature=signature)


def _after() -> tuple[int, int]:
    epoch, dot, generation = request.args.get("after", "0.0").partition(".")
    if not dot or not is_number(epoch) or not is_number(generation):
        raise Refused(invalid("'after' must be EPOCH.GENERATION.", "after"))
    return int(epoch), int(generation)


def _wait_ms() -> int:
    text = request.args.get("wait_ms", "0")
    if not is_number(text):
        raise Refused(invalid("'wait_ms' must be a number of milliseconds.", "wait_ms"))
    return min(int(text), WAIT_MS_MAX)
