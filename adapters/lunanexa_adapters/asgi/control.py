"""The operator plane as one quart-trio application: no sessions, no cookies, no secret key.

What Quart itself refuses (404, 405, 413, a body that came too slowly) is told in the one error shape; what a
handler breaks is not told here but passes to the guard in ``root``.
"""

from collections.abc import Callable
from typing import Any, Final, cast

from quart import Response
from quart.routing import QuartRule
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from lunanexa_adapters.asgi.errors import UNAVAILABLE
from lunanexa_adapters.asgi.exchange import Exchange
from lunanexa_adapters.asgi.fleet import fleet_routes
from lunanexa_adapters.asgi.headers import bearer, request_id, unreadable
from lunanexa_adapters.asgi.insight import insight_routes
from lunanexa_adapters.asgi.journal import journal_routes
from lunanexa_adapters.asgi.keys import key_routes
from lunanexa_adapters.asgi.operator import operator_routes
from lunanexa_adapters.asgi.quart_answers import BODY_BYTES_MAX, Answers, Refused
from lunanexa_adapters.asgi.recovery import recovery_routes
from lunanexa_adapters.asgi.trust import trust_routes
from lunanexa_core.outcomes import Refusal
from lunanexa_ports.asgi import AsgiApplication, Receive, Scope, Send
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.fleet import FleetPlane
from lunanexa_ports.ids import IdSource
from lunanexa_ports.insight import Insight
from lunanexa_ports.journal_plane import JournalPlane
from lunanexa_ports.operator import Health, KeyPlane, OperatorPlane
from lunanexa_ports.recovery_plane import RecoveryPlane
from lunanexa_ports.trust_plane import TrustPlane

AS_OF_HEADER: Final = "x-lunanexa-as-of"
"""On answers of a controller that does not lead: up to which sequence it has read the journal."""
_HOST: Final = b"lunanexa"
_OPERATORS: Final = "/admin/v1"


class _Route(QuartRule):
    """Leads requests in, and builds no address: making ready for that is three quarters of making the application."""

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        return _no_address


def _no_address(*_: object, **__: object) -> tuple[str, str]:
    raise AssertionError("no route of ours builds an address")


class _Quart(QuartTrio):
    url_rule_class = _Route  # type: ignore[assignment]  # Flask's constructor takes more than Quart's


class ControlApp(AsgiApplication):
    """Refuses what Quart would trip over before any handler of ours is reached, and hands on the rest. Quart reads
    a body beside its handlers, so strangers to the operator plane are refused here: nothing is read for them."""

    def __init__(self, app: QuartTrio, operator: OperatorPlane, ids: IdSource) -> None:
        self.quart = app
        self._operator = operator
        self._ids = ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        refusal = unreadable(scope) or await self._stranger(scope)
        if refusal is not None:
            await Exchange(scope, receive, send, request_id(scope, self._ids)).refuse_unread(refusal)
            return
        # Quart reads Host as part of the address and fails on some; no route of ours depends on it.
        headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"host"]
        plain = {**scope, "headers": [*headers, (b"host", _HOST)]}
        await self.quart(cast(Any, plain), cast(Any, receive), cast(Any, send))

    async def _stranger(self, scope: Scope) -> Refusal | None:
        path = str(scope["path"])
        if path != _OPERATORS and not path.startswith(_OPERATORS + "/"):
            return None
        token = bearer(scope)
        return token if isinstance(token, Refusal) else await self._operator.authorise(token)


def build_control_app(
    *,
    operator: OperatorPlane,
    fleet: FleetPlane,
    keys: KeyPlane,
    insight: Insight,
    journal: JournalPlane,
    recovery: RecoveryPlane,
    trust: TrustPlane,
    health: Health,
    ids: IdSource,
) -> ControlApp:
    """The application; it needs no lifespan."""
    app = _Quart("lunanexa", static_folder=None, template_folder=None)
    app.config.update(
        MAX_CONTENT_LENGTH=BODY_BYTES_MAX,
        # Slow senders and slow readers are the server's business: it alone knows who kept whom waiting.
        BODY_TIMEOUT=None,
        RESPONSE_TIMEOUT=None,
        # A handler's bug is the root's to tell.
        PROPAGATE_EXCEPTIONS=True,
        PROVIDE_AUTOMATIC_OPTIONS=False,
    )
    app.url_map.merge_slashes = False
    answers = Answers(ids)
    app.register_blueprint(operator_routes(operator, answers))
    app.register_blueprint(fleet_routes(fleet, answers))
    app.register_blueprint(key_routes(keys, answers))
    app.register_blueprint(insight_routes(insight, answers))
    app.register_blueprint(journal_routes(journal, answers))
    app.register_blueprint(recovery_routes(recovery, answers))
    app.register_blueprint(trust_routes(trust, answers))

    @app.errorhandler(HTTPException)
    async def http_exception(error: HTTPException) -> Response:
        return answers.refuse_http(error)

    @app.errorhandler(Refused)
    async def refused(error: Refused) -> Response:
        return answers.refuse(error.refusal)

    @app.errorhandler(PortUnavailable)
    async def unavailable(_: PortUnavailable) -> Response:
        return answers.refuse(UNAVAILABLE)

    @app.after_request
    async def common_headers(response: Response) -> Response:
        response.headers["x-request-id"] = answers.request
        response.headers["cache-control"] = "no-store"
        as_of = health.as_of()
        if as_of is not None:
            response.headers[AS_OF_HEADER] = str(as_of)
        return response

    return ControlApp(app, operator, ids)
