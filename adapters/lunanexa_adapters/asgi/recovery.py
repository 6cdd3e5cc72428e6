"""``/admin/v1/recovery``: a store that may have lost its newest rows, and the go."""

from quart import Blueprint, Response

from lunanexa_adapters.asgi.quart_answers import Answers, json_document, read_body, secret
from lunanexa_ports.recovery_plane import RecoveryPlane


def recovery_routes(plane: RecoveryPlane, answers: Answers) -> Blueprint:
    """The routes over ``plane``, which decides what a token allows."""
    routes = Blueprint("recovery", __name__, url_prefix="/admin/v1")

    @routes.get("/recovery")
    async def recovery() -> Response:
        return answers.reply(await plane.recovery(secret()))

    @routes.post("/recovery:rebase")
    async def rebase() -> Response:
        token = secret()
        return answers.reply(await plane.rebase(token, json_document(await read_body())))

    return routes
