"""Every route of the HTTP surface with what it takes and answers, once. ``/openapi.json`` is made of it, and
tests hold it against the routes that are served."""

from typing import Final

from lunanexa_adapters.asgi.route import Route
from lunanexa_adapters.asgi.routes_control import OPERATOR_ROUTES, RECOVERY_ROUTES
from lunanexa_adapters.asgi.routes_data import DATA_ROUTES
from lunanexa_adapters.asgi.routes_node import NODE_ROUTES
from lunanexa_adapters.asgi.routes_trust import TRUST_ROUTES

ROUTES: Final[tuple[Route, ...]] = (*DATA_ROUTES, *OPERATOR_ROUTES, *RECOVERY_ROUTES, *TRUST_ROUTES, *NODE_ROUTES)
