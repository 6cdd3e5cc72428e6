"""Routes of the operator and node planes."""

from typing import Any, Final

from lunanexa_adapters.asgi.route import IDENTIFIER, KEY_REFUSALS, LIMIT, Parameter, Plane, Route, identifier
from lunanexa_core.contract import fleet, insight, journal, keys, operator, recovery
from lunanexa_core.deployment import DeploymentSpec
from lunanexa_core.journal import Chain
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
_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}
_CURSOR: Final = Parameter(
    name="cursor", place="query", schema=_NUMBER, described="The `next_cursor` of the page before."
)
_SINCE: Final = Parameter(
    name="after_wall_ms", place="query", schema=_NUMBER, described="Recorded then or later; ms since 1970."
)
_BEFORE: Final = Parameter(
    name="before_wall_ms", place="query", schema=_NUMBER, described="Recorded before then; ms since 1970."
)
_NAME: Final = {"type": "string", "pattern": IDENTIFIER}
_TENANT: Final = Parameter(name="tenant", place="query", schema=_NAME, described="Of this tenant alone.")
_ORDER: Final = Parameter(
    name="order", place="query", schema={"enum": ["newest", "oldest"], "default": "newest"}, described="What is first."
)
_CHAIN: Final = Parameter(name="chain", place="query", schema={"enum": [chain.value for chain in Chain]})
_ACTION: Final = Parameter(name="action", place="query", schema=_NAME, described="As in `key.created`.")
_TARGET: Final = Parameter(name="target", place="query", schema=_NAME, described="What the row is about.")
_ACTOR: Final = Parameter(name="actor", place="query", schema=_NAME, described="Who did it.")
_SEQUENCE: Final = Parameter(name="sequence", place="path", schema=_NUMBER)
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
    _admin(
        "get",
        "/deployments/{name}",
        "One deployment and its replicas",
        fleet.DeploymentDocument,
        Outcome.NOT_FOUND,
        parameters=(_DEPLOYMENT,),
    ),
    _admin(
        "post",
        "/deployments:plan",
        "What applying a specification would change; nothing is written",
        fleet.DeploymentPlan,
        Outcome.PAYLOAD_TOO_LARGE,
        body=DeploymentSpec,
    ),
    _admin(
        "put",
        "/deployments/{name}/replicas",
        "Scales a deployment; replicas that stay run on",
        fleet.DeploymentDocument,
        *(Outcome.NOT_FOUND, Outcome.STALE_GENERATION, Outcome.PAYLOAD_TOO_LARGE),
        body=fleet.ScaleRequest,
        parameters=(_DEPLOYMENT, _IF_MATCH),
    ),
    _admin("get", "/nodes", "All nodes", fleet.NodeList),
    _admin(
        "get",
        "/nodes/{node}",
        "One node, and everything on it",
        fleet.NodeDocument,
        Outcome.NOT_FOUND,
        parameters=(_NODE,),
    ),
    _admin(
        "put",
        "/nodes/{node}/directive",
        "What a node shall do as a whole",
        fleet.NodeDocument,
        *(Outcome.NOT_FOUND, Outcome.STALE_GENERATION, Outcome.NODE_RETIRED, Outcome.PAYLOAD_TOO_LARGE),
        body=fleet.DirectiveRequest,
        parameters=(_NODE, _IF_MATCH),
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
    _admin(
        "get",
        "/receipts",
        "Receipts, the newest first",
        operator.ReceiptList,
        parameters=(LIMIT, _CURSOR, _TENANT, _SINCE, _BEFORE),
    ),
    _admin("get", "/requests", "Requests of all keys, in progress and ended", insight.RequestList, parameters=(LIMIT,)),
    _admin(
        "get",
        "/requests/{workload}",
        "One request, and why it went where it went",
        insight.Explanation,
        Outcome.NOT_FOUND,
        parameters=(_WORKLOAD,),
    ),
    _admin(
        "get",
        "/journal",
        "Rows of journal and ledger",
        journal.RowPage,
        parameters=(LIMIT, _CURSOR, _ORDER, _CHAIN, _ACTION, _TARGET, _ACTOR, _SINCE, _BEFORE),
    ),
    _admin("get", "/journal/head", "Where both chains stand", journal.HeadDocument),
    _admin("get", "/journal/state", "The digest of the live state", journal.StateDocument),
    _admin(
        "get",
        "/journal/rows/{sequence}",
        "One row",
        journal.RowDocument,
        Outcome.NOT_FOUND,
        parameters=(_SEQUENCE,),
    ),
)

RECOVERY_ROUTES: Final[tuple[Route, ...]] = (
    _admin("get", "/recovery", "Whether and why the store is recovered, and the plan", recovery.RecoveryDocument),
    _admin(
        "post",
        "/recovery:rebase",
        "The go for the plan that was seen: recovery ends",
        recovery.RecoveryEnded,
        *(Outcome.STALE_GENERATION, Outcome.PAYLOAD_TOO_LARGE),
        body=recovery.RecoveryGo,
    ),
)

NODE_ROUTES: Final[tuple[Route, ...]] = (
    _node(
        "post",
        "enrol",
        "A node's first word",
        Enrolled,
        *(Outcome.NODE_RETIRED, Outcome.PAYLOAD_TOO_LARGE),
        body=Enrolment,
        parameters=(_NODE, *_SIGNATURE),
    ),
    _node(
        "put",
        "heartbeat",
        "A node's report",
        HeartbeatAnswer,
        *(Outcome.STALE_GENERATION, Outcome.NODE_RETIRED, Outcome.PAYLOAD_TOO_LARGE),
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
