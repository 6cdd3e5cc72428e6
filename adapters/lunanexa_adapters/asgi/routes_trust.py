"""Routes of the operator plane that say who belongs to the fleet."""

from typing import Final

from lunanexa_adapters.asgi.route import NODE, Route, admin_route
from lunanexa_adapters.asgi.trust import PEM
from lunanexa_core.contract import fleet, trust
from lunanexa_core.outcomes import Outcome

TRUST_ROUTES: Final[tuple[Route, ...]] = (
    admin_route(
        "post",
        "/nodes/{node}/token",
        "An enrolment token, good once and for fifteen minutes; its line is shown this once",
        trust.TokenMinted,
        *(Outcome.STALE_GENERATION, Outcome.PAYLOAD_TOO_LARGE),
        body=trust.TokenRequest,
        parameters=(NODE,),
    ),
    admin_route(
        "post",
        "/nodes/{node}/revoke",
        "Voids a node's certificates and its signing key, at once",
        fleet.NodeDocument,
        *(Outcome.NOT_FOUND, Outcome.PAYLOAD_TOO_LARGE),
        body=trust.RevokeRequest,
        parameters=(NODE,),
    ),
    admin_route(
        "put",
        "/nodes/{node}/address",
        "Where gateways reach a node's data listener",
        fleet.NodeDocument,
        *(Outcome.NOT_FOUND, Outcome.NODE_RETIRED, Outcome.PAYLOAD_TOO_LARGE),
        body=trust.AddressRequest,
        parameters=(NODE,),
    ),
    admin_route("get", "/trust", "Authorities, signing keys, and how far a rotation is", trust.TrustDocument),
    admin_route("post", "/trust/rotate", "Exchanges authority and signing key for new ones", trust.TrustDocument),
    admin_route("get", "/trust/crl", "Revocation lists (RFC 5280) of the trusted authorities", PEM),
)
