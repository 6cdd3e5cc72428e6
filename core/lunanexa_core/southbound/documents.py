"""The desired state of one node: a signed document, ordered by (epoch, generation)."""

import enum
from typing import Final

import attrs

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.identity.trust import TrustSet
from lunanexa_core.ids import AssignmentId, ClusterId, DeploymentId, NodeId

DESIRED_STATE_SCHEMA: Final = "lunanexa.desired_state.v1"


class Directive(enum.Enum):
    """What a node as a whole shall do."""

    ACTIVE = "active"
    CORDON = "cordon"
    DRAIN = "drain"
    RETIRE = "retire"


@attrs.frozen(kw_only=True)
class DesiredAssignment:
    """One replica that shall run on the node. ``engine_key`` is the key that the engine will ask for."""

    assignment: AssignmentId
    generation: int
    deployment: DeploymentId
    engine: EngineSpec
    engine_key: str | None = attrs.field(default=None, repr=False)
    cut_off_keep_ms: int | None = None
    """How long the engine is kept after the node's lease has lapsed; ``None``: without limit."""


@attrs.frozen(kw_only=True)
class DesiredState:
    """All that one node shall make true."""

    schema: str = DESIRED_STATE_SCHEMA
    cluster: ClusterId
    node: NodeId
    epoch: int
    generation: int
    directive: Directive = Directive.ACTIVE
    assignments: tuple[DesiredAssignment, ...] = ()
    trust: TrustSet | None = None
    """Whom the node trusts from here on; ``None``: as before."""
    revoked: tuple[str, ...] = ()
    """Serials of certificates that count no more."""
    controllers: tuple[str, ...] = ()
    """Where controllers of this service answer nodes, ``https://HOST:PORT``; the one that led last is first."""

    @property
    def order(self) -> tuple[int, int]:
        return (self.epoch, self.generation)


@attrs.frozen(kw_only=True)
class SignedDocument:
    """The bytes as sent, and who signed them. The bytes are verified first and parsed after."""

    payload: bytes = attrs.field(repr=False)
    """May hold a token or keys of engines."""
    key_id: str
    signature: bytes


@attrs.frozen(kw_only=True)
class DocumentSeen:
    """The controller's word to a node that handed in what it follows: a heartbeat that tells of this is heard."""

    epoch: int
    generation: int


class DocumentRefusal(enum.Enum):
    """Why a node does not follow a document."""

    UNKNOWN_KEY = "unknown_key"
    BAD_SIGNATURE = "bad_signature"
    NOT_READABLE = "not_readable"
    OTHER_CLUSTER = "other_cluster"
    OTHER_NODE = "other_node"
    ROLLED_BACK = "rolled_back"
    CONTENT_CHANGED = "content_changed"


def check_order(
    accepted: DesiredState | None, offered: DesiredState, *, cluster: ClusterId, node: NodeId
) -> DocumentRefusal | None:
    """Whether ``offered`` may follow ``accepted`` on this node. Equal generations must be equal in
    content, also under a higher epoch: a new leader may re-sign a document, not change it silently."""
    if offered.cluster != cluster:
        return DocumentRefusal.OTHER_CLUSTER
    if offered.node != node:
        return DocumentRefusal.OTHER_NODE
    if accepted is None:
        return None
    if offered.epoch < accepted.epoch or offered.generation < accepted.generation:
        return DocumentRefusal.ROLLED_BACK
    if offered.generation == accepted.generation and attrs.evolve(offered, epoch=accepted.epoch) != accepted:
        return DocumentRefusal.CONTENT_CHANGED
    return None
