"""``/admin/v1/journal``: rows of journal and ledger, where they end, and the digest of what they make."""

from typing import Final

from quart import Blueprint, Response, request

from lunanexa_adapters.asgi.errors import invalid
from lunanexa_adapters.asgi.headers import is_number
from lunanexa_adapters.asgi.quart_answers import Answers, Refused, identifier, query_limit, query_number, secret
from lunanexa_core.journal import Chain
from lunanexa_core.journal_query import PageQuery
from lunanexa_ports.journal_plane import JournalPlane

_ORDERS: Final = {"newest": True, "oldest": False}
_CHAINS: Final = {chain.value: chain for chain in Chain}


def journal_routes(plane: JournalPlane, answers: Answers) -> Blueprint:
    """The routes over ``plane``, which decides what a token allows."""
    routes = Blueprint("journal", __name__, url_prefix="/admin/v1/journal")

    @routes.get("")
    async def rows() -> Response:
        order, chain = request.args.get("order", "newest"), request.args.get("chain")
        if order not in _ORDERS:
            raise Refused(invalid("'order' must be newest or oldest.", "order"))
        if chain is not None and chain not in _CHAINS:
            raise Refused(invalid(f"'chain' must be {' or '.join(_CHAINS)}.", "chain"))
        query = PageQuery(
            limit=query_limit(),
            cursor=query_number("cursor"),
            newest_first=_ORDERS[order],
            chain=None if chain is None else _CHAINS[chain],
            action=_name("action"),
            target=_name("target"),
            actor=_name("actor"),
            after_wall_ms=query_number("after_wall_ms"),
            before_wall_ms=query_number("before_wall_ms"),
        )
        return answers.reply(await plane.rows(secret(), query))

    @routes.get("/head")
    async def head() -> Response:
        return answers.reply(await plane.head(secret()))

    @routes.get("/state")
    async def state() -> Response:
        return answers.reply(await plane.state(secret()))

    @routes.get("/rows/<sequence>")
    async def row(sequence: str) -> Response:
        if not is_number(sequence):
            raise Refused(invalid("'sequence' must be a number.", "sequence"))
        return answers.reply(await plane.row(secret(), int(sequence)))

    return routes


def _name(param: str) -> str | None:
    text = request.args.get(param)
    return None if text is None else identifier(text, param)
