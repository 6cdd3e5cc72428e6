"""The events: what was decided, for ever. An event is the audit record and what ``apply`` replays.

Each kind has a name, a version and a chain. Old versions are lifted by pure upcasters that stay here;
an unknown kind or a newer version stops the process, because replaying without it would be a guess.
"""

import enum
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import attrs

from lunanexa_core.deployment import Assignment, Deployment
from lunanexa_core.identity.certificate import NodeCertificate
from lunanexa_core.identity.trust import TrustSet
from lunanexa_core.ids import AssignmentId, BootId, ClusterId, DeploymentId, HolderId, KeyId, NodeId, TenantId
from lunanexa_core.journal import Chain, Pruned
from lunanexa_core.keys import ApiKey
from lunanexa_core.recovery_reasons import RecoveryReason
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.southbound.heartbeat import ReplicaReport
from lunanexa_core.workload import Receipt, WorkloadRequest


class Liveness(enum.Enum):
    """What the controller thinks of a node, by its own clock since the last heartbeat arrived."""

    UNKNOWN = "unknown"
    READY = "ready"
    SUSPECT = "suspect"
    LOST = "lost"


@attrs.frozen
class ClusterCreated:
    """The first event of a journal."""

    cluster: ClusterId


@attrs.frozen(kw_only=True)
class EpochBegan:
    """A leader began; the epoch is the row's own."""

    version: str
    holder: HolderId | None = None
    """The installation that leads."""
    node_url: str | None = None
    """Where nodes reach its node listener; ``None``: it does not say."""


@attrs.frozen
class KeyCreated:
    """A key came into force."""

    key: ApiKey


@attrs.frozen
class KeyRevoked:
    """A key is void from here on."""

    key: KeyId


@attrs.frozen
class NodeRegistered:
    """A node was expected, which would prove itself by a bearer secret. Older versions wrote it."""

    node: NodeId
    bearer_digest: str = ""


@attrs.frozen(kw_only=True)
class NodeEnrolled:
    """A node brought its signing key; from now on its reports must bear that signature. Whatever certificates it had
    are revoked. Without ``token`` and ``certificate``: of an older version."""

    node: NodeId
    public_key: str
    agent_version: str
    token: str | None = None
    certificate: NodeCertificate | None = None
    data_address: str | None = None


@attrs.frozen
class EnrolmentEnded:
    """A node's signing key was void, for it was given another bearer secret. Older versions wrote it."""

    node: NodeId


@attrs.frozen
class TrustChanged:
    """All of the cluster trust these from here on."""

    trust: TrustSet


@attrs.frozen(kw_only=True)
class EnrolmentTokenMinted:
    """Whoever holds this token may enrol as that node, once; an earlier token of it is void. ``loopback``: without a
    data listener, too."""

    node: NodeId
    token: str
    digest: str
    expires_wall_ms: int
    loopback: bool = False


@attrs.frozen(kw_only=True)
class NodeCertified:
    """An enrolled node was given another certificate. ``by_challenge``: it showed none, but answered a challenge."""

    node: NodeId
    certificate: NodeCertificate
    by_challenge: bool
    agent_version: str


@attrs.frozen(kw_only=True)
class NodeRevoked:
    """A node's certificates and signing key are void. ``reason`` is the operator's."""

    node: NodeId
    reason: str | None = None


@attrs.frozen(kw_only=True)
class NodeAddressed:
    """Gateways reach the node's data listener there from here on; ``None``: it has none."""

    node: NodeId
    data_address: str | None


@attrs.frozen
class NodeBooted:
    """A node's agent reports from a new boot; reports of earlier boots are refused from here on."""

    node: NodeId
    boot: BootId


@attrs.frozen
class LivenessChanged:
    """The controller changed its mind about a node."""

    node: NodeId
    liveness: Liveness


@attrs.frozen(kw_only=True)
class DirectiveChanged:
    """An operator wants another thing of a whole node. ``reason`` is theirs; ``within_ms``: how long its emptying may
    take, where it is not the policy's."""

    node: NodeId
    directive: Directive
    reason: str | None = None
    within_ms: int | None = None


@attrs.frozen
class NodeRetired:
    """A node that was to retire has nothing left that runs: from here on it is none of ours."""

    node: NodeId


@attrs.frozen
class DeploymentApplied:
    """An operator wants this served, in this generation."""

    deployment: Deployment


@attrs.frozen
class DeploymentRemoved:
    """An operator wants it served no more."""

    deployment: DeploymentId


@attrs.frozen
class AssignmentPlaced:
    """A replica shall run there (also: the same place in a newer generation)."""

    assignment: Assignment


@attrs.frozen
class AssignmentRemoved:
    """A replica shall run no more."""

    assignment: AssignmentId


@attrs.frozen
class ReplicaChanged:
    """A node reported another state of a replica. Readings and log lines are never in it."""

    node: NodeId
    report: ReplicaReport


@attrs.frozen
class ReplicasGone:
    """What was taken from a node runs there no more: the node said so, or was silent for too long to have it still."""

    node: NodeId
    assignments: tuple[AssignmentId, ...]


@attrs.frozen
class RecoveryBegan:
    """The store may have lost its newest rows: until :class:`StoreRebased` only heartbeats are taken."""

    reasons: tuple[RecoveryReason, ...]


@attrs.frozen
class NodeGeneration:
    """A node, and the generation of its document from here on."""

    node: NodeId
    generation: int


@attrs.frozen(kw_only=True)
class StoreRebased:
    """An operator says that this store counts from here on, or a node comes back that this was not told of. What was
    given in the epoch ``above`` or an earlier one counts no more, where the store does not hold it; the row's own epoch
    is higher."""

    above: int
    generations: tuple[NodeGeneration, ...]


@attrs.frozen(kw_only=True)
class WorkloadAdmitted:
    """A workload is ours until its receipt."""

    request: WorkloadRequest
    key: KeyId
    tenant: TenantId
    deployment: DeploymentId


@attrs.frozen
class WorkloadSettled:
    """The one receipt of a workload."""

    receipt: Receipt


@attrs.frozen
class BindingsEnded:
    """These idempotency keys are free again."""

    keys: tuple[str, ...]


@attrs.frozen(kw_only=True)
class LedgerFile:
    """A file of rows that left the ledger: its name in the archive's folder, and its SHA-256 (hex)."""

    name: str
    sha256: str


@attrs.frozen(kw_only=True)
class LedgerPruned:
    """The ledger's rows up to sequence ``until`` may leave the store; ``carry`` stands for them from here on. Those up
    to ``after`` have left by earlier prunings."""

    after: int
    until: int
    count: int
    """Rows of the ledger up to there, since its beginning."""
    receipts: int
    """Receipts among them."""
    ledger: str
    """The hash of the last of them."""
    carry: str
    """Canonical JSON of a :class:`~lunanexa_core.ledger_carry.LedgerCarry`. A text, because only a replay reads it and
    it may be long."""
    archive: LedgerFile | None = None
    """The file that keeps those of them that no earlier one keeps; ``None``: there is none."""

    @property
    def pruned(self) -> Pruned:
        """What the state keeps of it."""
        return Pruned(after=self.after, until=self.until, rows=self.count, receipts=self.receipts, ledger=self.ledger)


Event: TypeAlias = (
    ClusterCreated
    | EpochBegan
    | KeyCreated
    | KeyRevoked
    | NodeRegistered
    | NodeEnrolled
    | EnrolmentEnded
    | TrustChanged
    | EnrolmentTokenMinted
    | NodeCertified
    | NodeRevoked
    | NodeAddressed
    | NodeBooted
    | LivenessChanged
    | DirectiveChanged
    | NodeRetired
    | DeploymentApplied
    | DeploymentRemoved
    | AssignmentPlaced
    | AssignmentRemoved
    | ReplicaChanged
    | ReplicasGone
    | RecoveryBegan
    | StoreRebased
    | WorkloadAdmitted
    | WorkloadSettled
    | BindingsEnded
    | LedgerPruned
)


LEDGER_TARGET: Final = "ledger"
"""The target of :class:`LedgerPruned`, by which the newest one is found at once."""


@attrs.frozen(kw_only=True)
class EventKind:
    """How one kind is written. ``target`` names what the event is about, for queries."""

    action: str
    type: type[Any]
    chain: Chain
    target: Callable[[Any], str]
    version: int = 1


def _kind(
    action: str, kind: type[Any], target: Callable[[Any], str], chain: Chain = Chain.JOURNAL, version: int = 1
) -> EventKind:
    return EventKind(action=action, type=kind, chain=chain, target=target, version=version)


KINDS: Final = (
    _kind("cluster.created", ClusterCreated, lambda event: event.cluster),
    _kind("epoch.began", EpochBegan, lambda _event: "kernel", version=2),
    _kind("key.created", KeyCreated, lambda event: event.key.key),
    _kind("key.revoked", KeyRevoked, lambda event: event.key),
    _kind("node.registered", NodeRegistered, lambda event: event.node),
    _kind("node.enrolled", NodeEnrolled, lambda event: event.node, version=2),
    _kind("node.enrolment_ended", EnrolmentEnded, lambda event: event.node),
    _kind("trust.changed", TrustChanged, lambda _event: "trust"),
    _kind("node.token_minted", EnrolmentTokenMinted, lambda event: event.node),
    _kind("node.certified", NodeCertified, lambda event: event.node),
    _kind("node.revoked", NodeRevoked, lambda event: event.node),
    _kind("node.addressed", NodeAddressed, lambda event: event.node),
    _kind("node.booted", NodeBooted, lambda event: event.node),
    _kind("node.liveness_changed", LivenessChanged, lambda event: event.node),
    _kind("node.directive_changed", DirectiveChanged, lambda event: event.node, version=2),
    _kind("node.retired", NodeRetired, lambda event: event.node),
    _kind("deployment.applied", DeploymentApplied, lambda event: event.deployment.spec.deployment),
    _kind("deployment.removed", DeploymentRemoved, lambda event: event.deployment),
    _kind("assignment.placed", AssignmentPlaced, lambda event: event.assignment.assignment),
    _kind("assignment.removed", AssignmentRemoved, lambda event: event.assignment),
    _kind("replica.changed", ReplicaChanged, lambda event: event.report.assignment),
    _kind("replicas.gone", ReplicasGone, lambda event: event.node),
    _kind("recovery.began", RecoveryBegan, lambda _event: "store"),
    _kind("store.rebased", StoreRebased, lambda _event: "store"),
    _kind("workload.admitted", WorkloadAdmitted, lambda event: event.request.workload, Chain.LEDGER),
    _kind("workload.settled", WorkloadSettled, lambda event: event.receipt.workload, Chain.LEDGER),
    _kind("bindings.ended", BindingsEnded, lambda _event: "bindings", Chain.LEDGER),
    _kind("ledger.pruned", LedgerPruned, lambda _event: LEDGER_TARGET),
)

KIND_OF_TYPE: Final = {kind.type: kind for kind in KINDS}
KIND_OF_ACTION: Final = {kind.action: kind for kind in KINDS}


class UnknownEvent(Exception):
    """The journal holds an event that this version can't replay; a newer version wrote it."""


def kind_for(action: str, version: int) -> EventKind:
    """The kind that reads ``action``. Raises :class:`UnknownEvent` with what mends it."""
    kind = KIND_OF_ACTION.get(action)
    if kind is None or version > kind.version:
        raise UnknownEvent(
            f"the journal holds {action!r} in version {version}, which this version of lunanexa can't read: "
            "start the version that wrote it, or a newer one"
        )
    return kind
