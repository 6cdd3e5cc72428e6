"""Every route of the HTTP surface with what it takes and answers, once. ``/openapi.json`` is made of it, and
tests hold it against the routes that are served."""

import enum
from typing import Any, Final

import attrs

from lunanexa_core.contract import data_plane, keys, operator
from lunanexa_core.deployment import DeploymentSpec
from lunanexa_core.outcomes import Outcome
from lunanexa_core.southbound.documents import DesiredState
from lunanexa_core.southbound.heartbeat import Enrolled, Enrolment, Heartbeat, HeartbeatAnswer
from lunanexa_core.workload import Dialect, Priority

METRICS_TYPE: Final = "text/plain"
IDENTIFIER: Final = "^[A-Za-z0-9_.:-]{1,256}$"


class Plane(enum.Enum):
    """Whose key opens a route. The value is its tag."""

    PROBES = "probes"
    DATA = "data plane"
    OPERATOR = "operator plane"
    NODE = "node plane"


@attrs.frozen(kw_only=True)
class Parameter:
    """In ``path``, ``query`` or ``header``."""

    name: str
    place: str
    schema: dict[str, Any]
    described: str = ""
    required: bool = False


@attrs.frozen(kw_only=True)
class Route:
    """``answer``: a documented type, or a media type; ``None`` for a bare 204. ``engine``: answers may be an
    engine's own, its 4xx included."""

    method: str
    path: str
    summary: str
    plane: Plane
    answer: Any = None
    body: type | None = None
    parameters: tuple[Parameter, ...] = ()
    refusals: tuple[Outcome, ...] = ()
    signed_answer: bool = False
    nothing: bool = False
    """204 is an answer too."""
    engine: bool = False


def _identifier(name: str) -> Parameter:
    return Parameter(name=name, place="path", schema={"type": "string", "pattern": IDENTIFIER})


_NODE: Final = _identifier("node")
_DEPLOYMENT: Final = _identifier("name")
_API_KEY: Final = _identifier("key")
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
_INFERENCE: Final = (
    Parameter(
        name="x-lunanexa-deadline-ms",
        place="header",
        schema={"type": "integer", "minimum": 1},
        described="Budget from arrival, queue and run together.",
    ),
    Parameter(name="x-lunanexa-priority", place="header", schema={"enum": [priority.value for priority in Priority]}),
)
_KEY: Final = (Outcome.INVALID_API_KEY, Outcome.PERMISSION_DENIED, Outcome.STORE_UNAVAILABLE)
_ADMISSION: Final = (
    *_KEY,
    *(Outcome.UNSUPPORTED_ENDPOINT, Outcome.MODEL_NOT_FOUND, Outcome.WORKLOAD_ACTIVE, Outcome.PAYLOAD_TOO_LARGE),
    *(Outcome.QUOTA_EXCEEDED, Outcome.RATE_LIMITED, Outcome.QUEUE_FULL, Outcome.DEADLINE_UNREACHABLE),
    *(Outcome.ENGINE_FAILED, Outcome.NO_PLACEMENT, Outcome.STARTING, Outcome.DRAINING, Outcome.NOT_LEADER),
    *(Outcome.RECEIPT_UNAVAILABLE, Outcome.DEADLINE_EXCEEDED),
)


def _probe(path: str, summary: str, answer: Any) -> Route:
    return Route(method="get", path=path, summary=summary, plane=Plane.PROBES, answer=answer)


def _infer(dialect: Dialect, summary: str, body: type) -> Route:
    return Route(
        method="post",
        path=dialect.path,
        summary=summary,
        plane=Plane.DATA,
        body=body,
        parameters=_INFERENCE,
        refusals=_ADMISSION,
        engine=True,
    )


def _admin(method: str, path: str, summary: str, answer: Any, *refusals: Outcome, **more: Any) -> Route:
    return Route(
        method=method,
        path="/admin/v1" + path,
        summary=summary,
        plane=Plane.OPERATOR,
        answer=answer,
        refusals=(*_KEY, *refusals),
        **more,
    )


def _node(method: str, verb: str, summary: str, answer: Any, *refusals: Outcome, **more: Any) -> Route:
    return Route(
        method=method,
        path="/node/v1/{node}/" + verb,
        summary=summary,
        plane=Plane.NODE,
        answer=answer,
        refusals=(*_KEY, *refusals),
        **more,
    )


_LIMIT: Final = Parameter(
    name="limit", place="query", schema={"type": "integer", "minimum": 1, "maximum": 500, "default": 50}
)
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

ROUTES: Final[tuple[Route, ...]] = (
    _probe("/health", "Alive; asks nobody", data_plane.Alive),
    Route(
        method="get",
        path="/ready",
        summary="Whether requests would be admitted",
        plane=Plane.PROBES,
        answer=data_plane.Ready,
        refusals=(Outcome.STARTING, Outcome.STORE_UNAVAILABLE, Outcome.DRAINING),
    ),
    _probe("/version", "Version and contract", data_plane.Version),
    _probe("/metrics", "Prometheus text", METRICS_TYPE),
    _probe("/openapi.json", "This document", dict[str, Any]),
    Route(
        method="get",
        path="/v1/models",
        summary="Aliases that can be called now with this key",
        plane=Plane.DATA,
        answer=data_plane.ModelList,
        refusals=_KEY,
    ),
    Route(
        method="get",
        path="/v1/models/{id}",
        summary="One of them",
        plane=Plane.DATA,
        answer=data_plane.Model,
        parameters=(Parameter(name="id", place="path", schema={"type": "string", "minLength": 1}),),
        refusals=(*_KEY, Outcome.MODEL_NOT_FOUND),
    ),
    _infer(Dialect.CHAT, "Chat, answered by an engine", data_plane.ChatRequest),
    _infer(Dialect.COMPLETIONS, "Text completion, answered by an engine", data_plane.CompletionRequest),
    _infer(Dialect.EMBEDDINGS, "Embeddings, answered by an engine", data_plane.EmbeddingRequest),
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
    _admin("get", "/receipts", "The newest receipts", operator.ReceiptList, parameters=(_LIMIT,)),
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
