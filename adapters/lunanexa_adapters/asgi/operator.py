"""``/admin/v1``: the routes of the operator plane that the command line uses."""

from typing import Final

from quart import Blueprint, Response, request

from lunanexa_adapters.asgi.errors import invalid
from lunanexa_adapters.asgi.quart_answers import (
    Answers,
    Refused,
    identifier,
    is_number,
    json_document,
    read_body,
    secret,
)
from lunanexa_ports.operator import OperatorPlane

RECEIPTS_DEFAULT: Final = 50


def operator_routes(plane: OperatorPlane, answers: Answers) -> Blueprint:
    """The routes over ``plane``, which decides what a token allows."""
    routes = Blueprint("operator", __name__, url_prefix="/admin/v1")

    @routes.get("/status")
    async def status() -> Response:
        return answers.reply(await plane.status(secret()))

    @routes.get("/deployments")
    async def deployments() -> Response:
        return answers.reply(await plane.deployments(secret()))

    @routes.put("/deployments/<name>")
    async def apply_deployment(name: str) -> Response:
        token, if_match = secret(), _if_match()
        document = json_document(await read_body())
        return answers.reply(await plane.apply_deployment(token, identifier(name, "name"), document, if_match))

    @routes.delete("/deployments/<name>")
    async def remove_deployment(name: str) -> Response:
        if "if-match" in request.headers:
            # Better refused than ignored: who sends a fence relies on it.
            raise Refused(invalid("If-Match is not supported here.", "if-match"))
        return answers.reply(await plane.remove_deployment(secret(), identifier(name, "name")))

    @routes.post("/drain")
    async def drain() -> Response:
        return answers.reply(await plane.drain(secret()))

    @routes.get("/receipts")
    async def receipts() -> Response:
        text = request.args.get("limit", str(RECEIPTS_DEFAULT))
        if not is_number(text):
            raise Refused(invalid("'limit' must be a number.", "limit"))
        return answers.reply(await plane.receipts(secret(), int(text)))

    return routes


def _if_match() -> int | None:
    text = request.headers.get("if-match")
    if text is None:
        return None
    digits = text.strip().removeprefix('"').removesuffix('"')
    if not is_number(digits):
        raise Refused(invalid("The header If-Match must be a generation.", "if-match"))
    return int(digits)
