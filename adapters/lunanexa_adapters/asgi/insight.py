"""``/admin/v1/requests``: single requests, and why each went where it went."""

from quart import Blueprint, Response

from lunanexa_adapters.asgi.quart_answers import Answers, identifier, query_limit, secret
from lunanexa_ports.insight import Insight


def insight_routes(insight: Insight, answers: Answers) -> Blueprint:
    """The routes over ``insight``, which decides what a token allows."""
    routes = Blueprint("insight", __name__, url_prefix="/admin/v1/requests")

    @routes.get("")
    async def requests() -> Response:
        return answers.reply(await insight.requests(secret(), query_limit()))

    @routes.get("/<workload>")
    async def explain(workload: str) -> Response:
        return answers.reply(await insight.explain(secret(), identifier(workload, "workload")))

    return routes
