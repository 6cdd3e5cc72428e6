"""The operator and node planes as one quart-trio application: no sessions, no cookies, no secret key.

What Quart itself refuses (404, 405, 413, a body that came too slowly) is told in the one error shape; what a
handler breaks is not told here but passes to the guard in ``root``.
"""

from typing import Final

from quart import Response
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from lunanexa_adapters.asgi.errors import UNAVAILABLE
from lunanexa_adapters.asgi.node_plane import node_routes
from lunanexa_adapters.asgi.operator import operator_routes
from lunanexa_adapters.asgi.quart_answers import BODY_BYTES_MAX, Answers, Refused
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.ids import IdSource
from lunanexa_ports.node_plane import NodePlane
from lunanexa_ports.operator import OperatorPlane

_BODY_TIMEOUT_S: Final = 30


def build_control_app(*, operator: OperatorPlane, nodes: NodePlane, ids: IdSource) -> QuartTrio:
    """The application; it needs no lifespan."""
    app = QuartTrio("lunanexa", static_folder=None, template_folder=None)
    app.config.update(
        MAX_CONTENT_LENGTH=BODY_BYTES_MAX,
        BODY_TIMEOUT=_BODY_TIMEOUT_S,
        # Slow readers are the server's business, and a long poll is no slow response.
        RESPONSE_TIMEOUT=None,
        # A handler's bug is the root's to tell.
        PROPAGATE_EXCEPTIONS=True,
        PROVIDE_AUTOMATIC_OPTIONS=False,
    )
    app.url_map.merge_slashes = False
    answers = Answers(ids)
    app.register_blueprint(operator_routes(operator, answers))
    app.register_blueprint(node_routes(nodes, answers))

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
        return response

    return app
