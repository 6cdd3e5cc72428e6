"""Routes of the operator plane."""

from typing import Final

from lunanexa_adapters.asgi.route import IDENTIFIER, LIMIT, NODE, Parameter, Route, admin_route, identifier
from lunanexa_core.contract import fleet, insight, journal, keys, operator, recovery
from lunanexa_core.deployment import DeploymentSpec
from lunanexa_core.journal import Chain
from lunanexa_core.outcomes import Outcome

_DEPLOYMENT: Final = identifier("name")
_API_KEY: Final = identifier("key")
_WORKLOAD: Final = identifier("workload")
_IF_MATCH: Final = Parameter(
    name="if-match",
    place="header",
    schema={"type": "string", "pattern": '^("[0-9]{1,15}"|[0-9]{1,15})$'},
    described="The generation that is changed; 0: only when new.",
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
_NODE_CURSOR: Final = Parameter(name="cursor", place="query", schema=_NAME, described=_CURSOR.described)
_TENANT: Final = Parameter(name="tenant", place="query", schema=_NAME, described="Of this tenant alone.")
_ORDER: Final = Parameter(
    name="order", place="query", schema={"enum": ["newest", "oldest"], "default": "newest"}, described="What is first."
)
_CHAIN: Final = Parameter(name="chain", place="query", schema={"enum": [chain.value for chain in Chain]})
_ACTION: Final = Parameter(name="action", place="query", schema=_NAME, described="As in `key.created`.")
_TARGET: Final = Parameter(name="target", place="query", schema=_NAME, described="What the row is about.")
_ACTOR: Final = Parameter(name="actor", place="query", schema=_NAME, described="Who did it.")
_SEQUENCE: Final = Parameter(name="sequence", place="path", schema=_NUMBER)


OPERATOR_ROUTES: Final[tuple[Route, ...]] = (
    admin_route("get", "/status", "Everything on one page", operator.StatusDocument),
    admin_route("get", "/deployments", "Deployments in force", operator.DeploymentList),
    admin_route(
        "put",
        "/deployments/{name}",
        "Creates or changes a deployment; equal content changes nothing",
        operator.DeploymentApplied,
        *(Outcome.STALE_GENERATION, Outcome.PAYLOAD_TOO_LARGE),
        body=DeploymentSpec,
        parameters=(_DEPLOYMENT, _IF_MATCH),
    ),
    admin_route(
        "delete",
        "/deployments/{name}",
        "Removes a deployment; its replicas drain and stop",
        operator.DeploymentRemoved,
        Outcome.NOT_FOUND,
        parameters=(_DEPLOYMENT,),
    ),
    admin_route(
        "get",
        "/deployments/{name}",
        "One deployment and its replicas",
        fleet.DeploymentDocument,
        Outcome.NOT_FOUND,
        parameters=(_DEPLOYMENT,),
    ),
    admin_route(
        "post",
        "/deployments:plan",
        "What applying a specification would change; nothing is written",
        fleet.DeploymentPlan,
        Outcome.PAYLOAD_TOO_LARGE,
        body=DeploymentSpec,
    ),
    admin_route(
        "put",
        "/deployments/{name}/replicas",
        "Scales a deployment; replicas that stay run on",
        fleet.DeploymentDocument,
        *(Outcome.NOT_FOUND, Outcome.STALE_GENERATION, Outcome.PAYLOAD_TOO_LARGE),
        body=fleet.ScaleRequest,
        parameters=(_DEPLOYMENT, _IF_MATCH),
    ),
    admin_route("get", "/nodes", "Nodes by name", fleet.NodeList, parameters=(LIMIT, _NODE_CURSOR)),
    admin_route(
        "get",
        "/nodes/{node}",
        "One node, and everything on it",
        fleet.NodeDocument,
        Outcome.NOT_FOUND,
        parameters=(NODE,),
    ),
    admin_route(
        "put",
        "/nodes/{node}/directive",
        "What a node shall do as a whole",
        fleet.NodeDocument,
        *(Outcome.NOT_FOUND, Outcome.STALE_GENERATION, Outcome.NODE_RETIRED, Outcome.PAYLOAD_TOO_LARGE),
        body=fleet.DirectiveRequest,
        parameters=(NODE, _IF_MATCH),
    ),
    admin_route("post", "/drain", "Admits nothing new until the next start", operator.Draining),
    admin_route(
        "post",
        "/keys",
        "Makes a key; its secret is shown this once",
        keys.KeyMade,
        Outcome.PAYLOAD_TOO_LARGE,
        body=keys.KeyRequest,
    ),
    admin_route("get", "/keys", "Keys in force, their limits and their use", keys.KeyList),
    admin_route("get", "/keys/{key}", "One of them", keys.KeyDocument, Outcome.NOT_FOUND, parameters=(_API_KEY,)),
    admin_route(
        "delete",
        "/keys/{key}",
        "Revokes a key; what it has in progress ends",
        keys.KeyRevoked,
        Outcome.NOT_FOUND,
        parameters=(_API_KEY,),
    ),
    admin_route(
        "get",
        "/receipts",
        "Receipts, the newest first",
        operator.ReceiptList,
        parameters=(LIMIT, _CURSOR, _TENANT, _SINCE, _BEFORE),
    ),
    admin_route(
        "get", "/requests", "Requests of all keys, in progress and ended", insight.RequestList, parameters=(LIMIT,)
    ),
    admin_route(
        "get",
        "/requests/{workload}",
        "One request, and why it went where it went",
        insight.Explanation,
        Outcome.NOT_FOUND,
        parameters=(_WORKLOAD,),
    ),
    admin_route(
        "get",
        "/journal",
        "Rows of journal and ledger",
        journal.RowPage,
        parameters=(LIMIT, _CURSOR, _ORDER, _CHAIN, _ACTION, _TARGET, _ACTOR, _SINCE, _BEFORE),
    ),
    admin_route("get", "/journal/head", "Where both chains stand", journal.HeadDocument),
    admin_route("get", "/journal/state", "The digest of the live state", journal.StateDocument),
    admin_route(
        "get",
        "/journal/rows/{sequence}",
        "One row",
        journal.RowDocument,
        Outcome.NOT_FOUND,
        parameters=(_SEQUENCE,),
    ),
)

RECOVERY_ROUTES: Final[tuple[Route, ...]] = (
    admin_route("get", "/recovery", "Whether and why the store is recovered, and the plan", recovery.RecoveryDocument),
    admin_route(
        "post",
        "/recovery:rebase",
        "The go for the plan that was seen: recovery ends",
        recovery.RecoveryEnded,
        *(Outcome.STALE_GENERATION, Outcome.PAYLOAD_TOO_LARGE),
        body=recovery.RecoveryGo,
    ),
)
