"""``/admin/v1``: the routes of the operator plane that the command line uses."""

from quart import Blueprint, Response, request

from lunanexa_adapters.asgi.errors import invalid
from lunanexa_adapters.asgi.quart_answers import (
    Answers,
    Refused,
    identifier,
    if_match,
    json_document,
    query_limit,
    query_number,
    read_body,
    secret,
)
from lunanexa_core.ids import TenantId
from lunanexa_core.journal_query import ReceiptQuery
from lunanexa_ports.operator import OperatorPlane


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
        token, generation = secret(), if_match()
        document = json_document(await read_body())
        return answers.reply(await plane.apply_deployment(token, identifier(name, "name"), document, generation))

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
        tenant = request.args.get("tenant")
        query = ReceiptQuery(
            limit=query_limit(),
            cursor=query_number("cursor"),
            tenant=None if tenant is None else TenantId(identifier(tenant, "tenant")),
            after_wall_ms=query_number("after_wall_ms"),
            before_wall_ms=query_number("before_wall_ms"),
        )
        return answers.reply(await plane.receipts(secret(), query))

    return routes
