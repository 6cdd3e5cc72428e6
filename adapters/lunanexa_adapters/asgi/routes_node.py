"""Routes of the node plane. They are served on the listener for nodes alone, over mutual TLS."""

from typing import Any, Final

from lunanexa_adapters.asgi.route import IDENTIFIER, NODE, Parameter, Plane, Route
from lunanexa_core.outcomes import Outcome
from lunanexa_core.southbound.documents import DesiredState, DocumentSeen
from lunanexa_core.southbound.enrolment import Authorities, Challenge, Enrolled, Enrolment, Renewal
from lunanexa_core.southbound.heartbeat import Heartbeat, HeartbeatAnswer

_SIGNATURE: Final = (
    Parameter(
        name="x-lunanexa-key-id", place="header", schema={"type": "string", "pattern": IDENTIFIER}, required=True
    ),
    Parameter(
        name="x-lunanexa-signature",
        place="header",
        schema={"type": "string", "pattern": "^([0-9a-f]{2})+$"},
        described="Ed25519 over the body as sent, hexadecimal.",
        required=True,
    ),
)
_AFTER: Final = Parameter(
    name="after",
    place="query",
    schema={"type": "string", "pattern": r"^[0-9]{1,15}\.[0-9]{1,15}$", "default": "0.0"},
    described="EPOCH.GENERATION that is known already.",
)
_WAIT: Final = Parameter(name="wait_ms", place="query", schema={"type": "integer", "minimum": 0, "default": 0})


def _node(method: str, verb: str, summary: str, answer: Any, *refusals: Outcome, **more: Any) -> Route:
    return Route(
        method=method,
        path="/node/v1/{node}/" + verb,
        summary=summary,
        plane=Plane.NODE,
        answer=answer,
        refusals=(Outcome.PERMISSION_DENIED, Outcome.STORE_UNAVAILABLE, *refusals),
        **more,
    )


NODE_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="get",
        path="/node/v1/authorities",
        summary="The cluster's authorities; to be believed by their fingerprints only",
        plane=Plane.NODE,
        answer=Authorities,
        refusals=(Outcome.STORE_UNAVAILABLE,),
        anonymous=True,
    ),
    _node(
        "post",
        "enrol",
        "A node's first word, with its token",
        Enrolled,
        *(Outcome.RATE_LIMITED, Outcome.PAYLOAD_TOO_LARGE),
        body=Enrolment,
        parameters=(NODE, *_SIGNATURE),
        anonymous=True,
    ),
    _node(
        "post",
        "challenge",
        "What a renewal without a certificate must answer",
        Challenge,
        parameters=(NODE,),
        anonymous=True,
    ),
    _node(
        "post",
        "renew",
        "A new certificate, for who shows one that is good or answers a challenge",
        Enrolled,
        *(Outcome.NODE_RETIRED, Outcome.RATE_LIMITED, Outcome.PAYLOAD_TOO_LARGE),
        body=Renewal,
        parameters=(NODE, *_SIGNATURE),
        anonymous=True,
    ),
    _node(
        "put",
        "heartbeat",
        "A node's report",
        HeartbeatAnswer,
        *(Outcome.STALE_GENERATION, Outcome.DOCUMENT_WANTED, Outcome.NODE_RETIRED, Outcome.PAYLOAD_TOO_LARGE),
        body=Heartbeat,
        parameters=(NODE, *_SIGNATURE),
    ),
    _node(
        "put",
        "document",
        "The document that the node follows, as it was signed; asked for by `document_wanted`",
        DocumentSeen,
        *(Outcome.DOCUMENT_WANTED, Outcome.PAYLOAD_TOO_LARGE),
        body=DesiredState,
        parameters=(NODE, *_SIGNATURE),
    ),
    _node(
        "get",
        "desired",
        "What the node shall make true, once it is newer than `after`",
        DesiredState,
        parameters=(NODE, _AFTER, _WAIT),
        signed_answer=True,
        nothing=True,
    ),
)
