"""``/admin/v1/requests``: single requests, and why each went where it went."""

from quart import Blueprint, Response, request

from lunanexa_adapters.asgi.errors import invalid
from lunanexa_adapters.asgi.quart_answers import Answers, Refused, identifier, is_number, secret
from lunanexa_ports.insight import Insight

LIMIT_DEFAULT = 50


def insight_routes(insight: Insight, answers: Answers) -> Blueprint:
    """The routes over ``insight``, which decides what a token allows."""
    routes = Blueprint("insight", __name__, url_prefix="/admin/v1/requests")

    @routes.get("")
    async def requests() -> Response:
        text = request.args.get("limit", str(LIMIT_DEFAULT))
        if not is_number(text):
            raise Refused(invalid("'limit' must be a number.", "limit"))
        return answers.reply(await insight.requests(secret(), int(text)))

    @routes.get("/<workload>")
    async def explain(workload: str) -> Response:
        return answers.reply(await insight.explain(secret(), identifier(workload, "workload")))

    return routes
