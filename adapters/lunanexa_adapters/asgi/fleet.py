"""``/admin/v1``: nodes and single deployments."""

from quart import Blueprint, Response, request

from lunanexa_adapters.asgi.quart_answers import (
    Answers,
    identifier,
    if_match,
    json_document,
    query_limit,
    read_body,
    secret,
)
from lunanexa_ports.fleet import FleetPlane


def fleet_routes(plane: FleetPlane, answers: Answers) -> Blueprint:
    """The routes over ``plane``, which decides what a token allows."""
    routes = Blueprint("fleet", __name__, url_prefix="/admin/v1")

    @routes.get("/nodes")
    async def nodes() -> Response:
        cursor = request.args.get("cursor")
        behind = None if cursor is None else identifier(cursor, "cursor")
        return answers.reply(await plane.nodes(secret(), query_limit(), behind))

    @routes.get("/nodes/<node>")
    async def node(node: str) -> Response:
        return answers.reply(await plane.node(secret(), identifier(node, "node")))

    @routes.put("/nodes/<node>/directive")
    async def set_directive(node: str) -> Response:
        token, generation = secret(), if_match()
        document = json_document(await read_body())
        return answers.reply(await plane.set_directive(token, identifier(node, "node"), document, generation))

    @routes.get("/deployments/<name>")
    async def deployment(name: str) -> Response:
        return answers.reply(await plane.deployment(secret(), identifier(name, "name")))

    @routes.post("/deployments:plan")
    async def plan_deployment() -> Response:
        token = secret()
        return answers.reply(await plane.plan_deployment(token, json_document(await read_body())))

    @routes.put("/deployments/<name>/replicas")
    async def scale_deployment(name: str) -> Response:
        token, generation = secret(), if_match()
        document = json_document(await read_body())
        return answers.reply(await plane.scale_deployment(token, identifier(name, "name"), document, generation))

    return routes
