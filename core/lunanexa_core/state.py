"""What replay rebuilds: plain tables of frozen values, changed in place by ``apply`` alone.

Nobody keeps a reference to a table across an ``await``; the values themselves may be kept.
"""

import attrs

from lunanexa_core.admission.windows import KeyWindows
from lunanexa_core.binding import Binding
from lunanexa_core.deployment import Assignment, Deployment
from lunanexa_core.events import Liveness
from lunanexa_core.identity.certificate import NodeCertificate, RevokedCertificate
from lunanexa_core.identity.token import KnownToken
from lunanexa_core.identity.trust import TrustSet
from lunanexa_core.ids import (
    Alias,
    AssignmentId,
    BootId,
    ClusterId,
    DeploymentId,
    HolderId,
    KeyId,
    NodeId,
    TenantId,
    WorkloadId,
)
from lunanexa_core.journal import Pruned
from lunanexa_core.keys import ApiKey
from lunanexa_core.recovery_reasons import RecoveryReason
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.southbound.heartbeat import ReplicaReport
from lunanexa_core.workload import LedgerPlace, Receipt, Usage, WorkloadRequest, WorkloadState

RECENT_RECEIPTS = 1_024
"""Receipts kept in memory for lists and for late settlements; all of them are in the ledger."""

PAST_BOOTS = 16
"""Superseded boots that are remembered of each node."""


@attrs.frozen(kw_only=True)
class Node:
    """A machine of the fleet. ``generation`` is that of its signed document."""

    node: NodeId
    public_key: str | None = None
    agent_version: str | None = None
    boot: BootId | None = None
    past_boots: tuple[BootId, ...] = ()
    """Superseded boots, newest last, bounded; their late reports are refused."""
    directive: Directive = Directive.ACTIVE
    directive_wall_ms: int = 0
    """Since when, by the journal's time."""
    directive_reason: str | None = None
    directive_within_ms: int | None = None
    """How long its emptying may take; ``None``: as long as the policy says."""
    retired: bool = False
    """It was to retire and is empty: nothing is heard of it any more."""
    liveness: Liveness = Liveness.UNKNOWN
    generation: int = 0
    certificates: tuple[NodeCertificate, ...] = ()
    """Those that may be good yet, newest last; the newest stays when it has expired, for it tells since when."""
    data_address: str | None = None
    """``HOST:PORT`` of its data listener; ``None``: it has none."""
    revoked: bool = False
    """Its certificates and its key are void: it must enrol anew."""
    enrolled_wall_ms: int | None = None
    """Since when it is one of ours by its key; ``None``: it is not known."""
    certified_wall_ms: int | None = None
    """When it was given its newest certificate, by the journal's time: no clock that is set moves it."""
    loopback: bool = False
    """Whether the token by which it enrolled lets it do without a data listener."""


@attrs.frozen(kw_only=True)
class Leaving:
    """A replica that is assigned no more and may run: until its node, following the document of this ``generation``,
    says that it has none; or for ``bound_ms`` after a lease in which the node is silent (``None``: without limit)."""

    deployment: DeploymentId
    node: NodeId
    generation: int
    bound_ms: int | None


@attrs.frozen(kw_only=True)
class OpenWorkload:
    """An admitted workload without a receipt. ``epoch`` is that of the leader that admitted it."""

    request: WorkloadRequest
    key: KeyId
    tenant: TenantId
    deployment: DeploymentId
    epoch: int
    window_wall_ms: int | None = None
    """When it was taken from the windows of its key; ``None``: the key has no limit a minute."""


@attrs.frozen(kw_only=True)
class Totals:
    """Sums over all receipts of a tenant, or of a key."""

    requests: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    usage: Usage = attrs.Factory(Usage)

    def plus(self, receipt: Receipt) -> "Totals":
        state = receipt.state
        return Totals(
            requests=self.requests + 1,
            succeeded=self.succeeded + (state is WorkloadState.SUCCEEDED),
            failed=self.failed + (state is WorkloadState.FAILED),
            cancelled=self.cancelled + (state is WorkloadState.CANCELLED),
            usage=self.usage.plus(receipt.settlement.usage),
        )


@attrs.frozen
class KnownController:
    """Where nodes reach a controller, and the epoch in which it began to lead last."""

    node_url: str
    epoch: int


@attrs.define(kw_only=True)
class State:
    """All control state. Equality is by content: replay must give an equal one."""

    cluster: ClusterId | None = None
    epoch: int = 0
    holder: HolderId | None = None
    """The installation that led last."""
    controllers: dict[HolderId, KnownController] = attrs.Factory(dict)
    """The installations that have led, as far as they say where nodes reach them; bounded."""
    keys: dict[KeyId, ApiKey] = attrs.Factory(dict)
    key_of_digest: dict[str, KeyId] = attrs.Factory(dict)
    trust: TrustSet | None = None
    """``None``: of a journal that nobody has led since there were certificates."""
    tokens: dict[str, KnownToken] = attrs.Factory(dict)
    """By name; one a node at most."""
    revoked: dict[str, RevokedCertificate] = attrs.Factory(dict)
    """By serial. What has expired leaves with the next change that all nodes are told of."""
    nodes: dict[NodeId, Node] = attrs.Factory(dict)
    deployments: dict[DeploymentId, Deployment] = attrs.Factory(dict)
    deployment_of_alias: dict[Alias, DeploymentId] = attrs.Factory(dict)
    assignments: dict[AssignmentId, Assignment] = attrs.Factory(dict)
    replicas: dict[AssignmentId, ReplicaReport] = attrs.Factory(dict)
    replica_node: dict[AssignmentId, NodeId] = attrs.Factory(dict)
    """Which node reported a replica; it may outlive the assignment until the node says that it is gone."""
    leaving: dict[AssignmentId, Leaving] = attrs.Factory(dict)
    open: dict[WorkloadId, OpenWorkload] = attrs.Factory(dict)
    open_of_key: dict[KeyId, int] = attrs.Factory(dict)
    open_of_deployment: dict[DeploymentId, int] = attrs.Factory(dict)
    admitted: dict[WorkloadId, int] = attrs.Factory(dict)
    """The ledger's sequence of each admission, as long as the workload is open or its receipt at hand: their order."""
    receipts: dict[WorkloadId, Receipt] = attrs.Factory(dict)
    places: dict[WorkloadId, LedgerPlace] = attrs.Factory(dict)
    """Where those receipts stand in the ledger."""
    bindings: dict[str, Binding] = attrs.Factory(dict)
    """By idempotency key and tenant (:func:`~lunanexa_core.binding.bound_key`), in the order of ``since_wall_ms``."""
    bindings_of_tenant: dict[TenantId, int] = attrs.Factory(dict)
    bound: dict[WorkloadId, str] = attrs.Factory(dict)
    """The idempotency key of each workload that a binding stands for: no other may take its name meanwhile."""
    totals: dict[TenantId, Totals] = attrs.Factory(dict)
    totals_of_key: dict[KeyId, Totals] = attrs.Factory(dict)
    """Of keys in force alone."""
    windows: dict[KeyId, KeyWindows] = attrs.Factory(dict)
    """Of keys with a limit a minute. What counts no more is dropped when the key is used next."""
    pruned: Pruned | None = None
    """What has left the ledger, or may leave it now; ``None``: nothing."""
    recovery: tuple[RecoveryReason, ...] | None = None
    """Why an operator's go is waited for; ``None``: nothing is."""
    rebased: int = 0
    """Up to which epoch the last go covered what the store does not hold."""

    def copy(self) -> "State":
        """A state of its own: equal tables of the same frozen values."""
        copied = State()
        for field in attrs.fields(State):
            value = getattr(self, field.name)
            setattr(copied, field.name, dict(value) if isinstance(value, dict) else value)
        return copied
