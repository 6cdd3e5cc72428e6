"""``/admin/v1``: who belongs to the fleet, and what all of it trust."""

from typing import Final

from quart import Blueprint, Response

from lunanexa_adapters.asgi.quart_answers import Answers, identifier, json_document, read_body, secret
from lunanexa_core.outcomes import Refusal
from lunanexa_ports.trust_plane import TrustPlane

PEM: Final = "application/x-pem-file"
"""Of revocation lists: one for each trusted authority, one after another (RFC 7468)."""


def trust_routes(plane: TrustPlane, answers: Answers) -> Blueprint:
    """The routes over ``plane``, which decides what a token allows."""
    routes = Blueprint("trust", __name__, url_prefix="/admin/v1")

    @routes.post("/nodes/<node>/token")
    async def mint_token(node: str) -> Response:
        token = secret()
        document = json_document(await read_body())
        return answers.reply(await plane.mint_token(token, identifier(node, "node"), document))

    @routes.post("/nodes/<node>/revoke")
    async def revoke_node(node: str) -> Response:
        token = secret()
        document = json_document(await read_body())
        return answers.reply(await plane.revoke_node(token, identifier(node, "node"), document))

    @routes.put("/nodes/<node>/address")
    async def set_address(node: str) -> Response:
        token = secret()
        document = json_document(await read_body())
        return answers.reply(await plane.set_address(token, identifier(node, "node"), document))

    @routes.get("/trust")
    async def trust() -> Response:
        return answers.reply(await plane.trust(secret()))

    @routes.post("/trust/rotate")
    async def rotate() -> Response:
        return answers.reply(await plane.rotate(secret()))

    @routes.get("/trust/crl")
    async def revocation_list() -> Response:
        found = await plane.revocation_list(secret())
        return answers.refuse(found) if isinstance(found, Refusal) else Response(found, content_type=PEM)

    return routes
