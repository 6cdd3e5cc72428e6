"""``/admin/v1/keys``: keys, their limits and their use."""

from quart import Blueprint, Response

from lunanexa_adapters.asgi.quart_answers import Answers, identifier, json_document, read_body, secret
from lunanexa_ports.operator import KeyPlane


def key_routes(plane: KeyPlane, answers: Answers) -> Blueprint:
    """The routes over ``plane``, which decides what a token allows."""
    routes = Blueprint("keys", __name__, url_prefix="/admin/v1/keys")

    @routes.post("")
    async def create_key() -> Response:
        token = secret()
        return answers.reply(await plane.create_key(token, json_document(await read_body())))

    @routes.get("")
    async def keys() -> Response:
        return answers.reply(await plane.keys(secret()))

    @routes.get("/<key>")
    async def key(key: str) -> Response:
        return answers.reply(await plane.key(secret(), identifier(key, "key")))

    @routes.delete("/<key>")
    async def revoke_key(key: str) -> Response:
        return answers.reply(await plane.revoke_key(secret(), identifier(key, "key")))

    return routes
