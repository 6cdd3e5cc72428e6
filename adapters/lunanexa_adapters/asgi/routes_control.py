"""Routes of the operator and node planes."""

from typing import Any, Final

from lunanexa_adapters.asgi.route import IDENTIFIER, KEY_REFUSALS, LIMIT, Parameter, Plane, Route, identifier
from lunanexa_core.contract import insight, keys, operator
from lunanexa_core.deployment import DeploymentSpec
from lunanexa_core.outcomes import Outcome
from lunanexa_core.southbound.documents import DesiredState
from lunanexa_core.southbound.heartbeat import Enrolled, Enrolment, Heartbeat, HeartbeatAnswer

_NODE: Final = identifier("node")
_DEPLOYMENT: Final = identifier("name")
_API_KEY: Final = identifier("key")
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
_WORKLOAD: Final = identifier("workload")
_IF_MATCH: Final = Parameter(
    name="if-match",
    place="header",
    schema={"type": "string", "pattern": '^("[0-9]{1,15}"|[0-9]{1,15})$'},
    described="The generation that is changed; 0: only when new.",
)
_AFTER: Final = Parameter(
    name="after",
    place="query",
    schema={"type": "string", "pattern": r"^[0-9]{1,15}\.[0-9]{1,15}$", "default": "0.0"},
    described="EPOCH.GENERATION that is known already.",
)
_WAIT: Final = Parameter(name="wait_ms", place="query", schema={"type": "integer", "minimum": 0, "default": 0})


def _admin(method: str, path: str, summary: str, answer: Any, *refusals: Outcome, **more: Any) -> Route:
    return Route(
        method=method,
        path="/admin/v1" + path,
        summary=summary,
        plane=Plane.OPERATOR,
        answer=answer,
        refusals=(*KEY_REFUSALS, *refusals),
        **more,
    )


def _node(method: str, verb: str, summary: str, answer: Any, *refusals: Outcome, **more: Any) -> Route:
    return Route(
        method=method,
        path="/node/v1/{node}/" + verb,
        summary=summary,
        plane=Plane.NODE,
        answer=answer,
        refusals=(*KEY_REFUSALS, *refusals),
        **more,
    )


OPERATOR_ROUTES: Final[tuple[Route, ...]] = (
    _admin("get", "/status", "Everything on one page", operator.StatusDocument),
    _admin("get", "/deployments", "Deployments in force", operator.DeploymentList),
    _admin(
        "put",
        "/deployments/{name}",
        "Creates or changes a deployment; equal content changes nothing",
        operator.DeploymentApplied,
        *(Outcome.STALE_GENERATION, Outcome.PAYLOAD_TOO_LARGE),
        body=DeploymentSpec,
        parameters=(_DEPLOYMENT, _IF_MATCH),
    ),
    _admin(
        "delete",
        "/deployments/{name}",
        "Removes a deployment; its replicas drain and stop",
        operator.DeploymentRemoved,
        Outcome.NOT_FOUND,
        parameters=(_DEPLOYMENT,),
    ),
    _admin("post", "/drain", "Admits nothing new until the next start", operator.Draining),
    _admin(
        "post",
        "/keys",
        "Makes a key; its secret is shown this once",
        keys.KeyMade,
        Outcome.PAYLOAD_TOO_LARGE,
        body=keys.KeyRequest,
    ),
    _admin("get", "/keys", "Keys in force, their limits and their use", keys.KeyList),
    _admin("get", "/keys/{key}", "One of them", keys.KeyDocument, Outcome.NOT_FOUND, parameters=(_API_KEY,)),
    _admin(
        "delete",
        "/keys/{key}",
        "Revokes a key; what it has in progress ends",
        keys.KeyRevoked,
        Outcome.NOT_FOUND,
        parameters=(_API_KEY,),
    ),
    _admin("get", "/receipts", "The newest receipts", operator.ReceiptList, parameters=(LIMIT,)),
    _admin("get", "/requests", "Requests of all keys, in progress and ended", insight.RequestList, parameters=(LIMIT,)),
    _admin(
        "get",
        "/requests/{workload}",
        "One request, and why it went where it went",
        insight.Explanation,
        Outcome.NOT_FOUND,
        parameters=(_WORKLOAD,),
    ),
)

NODE_ROUTES: Final[tuple[Route, ...]] = (
    _node(
        "post",
        "enrol",
        "A node's first word",
        Enrolled,
        Outcome.PAYLOAD_TOO_LARGE,
        body=Enrolment,
        parameters=(_NODE, *_SIGNATURE),
    ),
    _node(
        "put",
        "heartbeat",
        "A node's report",
        HeartbeatAnswer,
        *(Outcome.STALE_GENERATION, Outcome.PAYLOAD_TOO_LARGE),
        body=Heartbeat,
        parameters=(_NODE, *_SIGNATURE),
    ),
    _node(
        "get",
        "desired",
        "What the node shall make true, once it is newer than `after`",
        DesiredState,
        parameters=(_NODE, _AFTER, _WAIT),
        signed_answer=True,
        nothing=True,
    ),
)
