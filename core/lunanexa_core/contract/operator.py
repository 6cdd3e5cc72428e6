"""What the operator plane answers, as values: the published schemas are generated from these.

They tell the form; the answers are written where the facts are, and tests hold the two together.
"""

import attrs

from lunanexa_core.deployment import Deployment
from lunanexa_core.events import Liveness
from lunanexa_core.ids import Alias, AssignmentId, BootId, DeploymentId, KeyId, NodeId, RequestId, TenantId, WorkloadId
from lunanexa_core.outcomes import Outcome
from lunanexa_core.placement.exclusive import TakenPlace
from lunanexa_core.recovery_reasons import RecoveryReason
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.southbound.heartbeat import ExitReason, IdentityGrade, RefusedAssignment
from lunanexa_core.workload import Attempt, Dialect, WorkloadState


@attrs.frozen(kw_only=True)
class ReceiptDocument:
    """The one terminal record of a workload."""

    workload: WorkloadId
    request: RequestId
    tenant: TenantId
    key: KeyId
    alias: Alias
    dialect: Dialect
    state: WorkloadState
    outcome: Outcome | None
    detail: str | None
    input_tokens: int
    output_tokens: int
    estimated: bool
    queue_ms: int
    first_output_ms: int | None
    total_ms: int
    attempts: tuple[Attempt, ...]


@attrs.frozen(kw_only=True)
class ListedReceipt(ReceiptDocument):
    """A receipt, and the ledger's row that holds it."""

    sequence: int


@attrs.frozen
class ReceiptList:
    """The newest first. ``next_cursor`` goes on where this page ends, which may be short or empty; ``None``: there is
    no more."""

    data: tuple[ListedReceipt, ...]
    next_cursor: str | None


@attrs.frozen
class DeploymentList:
    """Deployments in force."""

    data: tuple[Deployment, ...]


@attrs.frozen
class DeploymentApplied:
    """The deployment is in force."""

    deployment: DeploymentId
    generation: int


@attrs.frozen
class DeploymentRemoved:
    """Its replicas drain and stop."""

    deployment: DeploymentId
    removed: bool


@attrs.frozen
class Draining:
    """Nothing new is admitted."""

    draining: bool
    in_flight: int


@attrs.frozen(kw_only=True)
class CertificateStatus:
    """A node's certificate. ``issuer`` is its authority's fingerprint; what has expired has a negative time left."""

    serial: str
    issuer: str
    expires_in_ms: int


@attrs.frozen(kw_only=True)
class NodeStatus:
    """One machine. ``None`` is unknown."""

    node: NodeId
    state: Liveness
    directive: Directive
    reason: str | None
    """The operator's, for the directive."""
    within_ms: int | None
    """How long it may take to empty it, as the operator said."""
    retired: bool
    revoked: bool
    """Its certificates and its key are void: it must enrol anew."""
    enrolled: bool
    enrolled_wall_ms: int | None
    token_expires_in_ms: int | None
    """So long it may enrol with a token that was minted; ``None``: there is none."""
    certificate: CertificateStatus | None
    """The newest one that it was given."""
    data_address: str | None
    """Where gateways reach it; ``None``: on the controller's own machine alone."""
    trust_version: int | None
    """Of the trust set that it follows."""
    boot: BootId | None
    generation: int
    agent_version: str | None
    heartbeat_age_ms: int | None
    available_mib: int | None
    total_mib: int | None
    document_refusal: str | None
    refused: tuple[RefusedAssignment, ...]
    skew_ms: int | None
    """By how much the controller's clock is ahead of the node's."""
    skew_error_ms: int | None


@attrs.frozen(kw_only=True)
class QueueStatus:
    """The queue of one service."""

    waiting: int
    running: int
    slots: int
    limit: int


@attrs.frozen(kw_only=True)
class ReplicaStatus:
    """One replica as its node last said."""

    assignment: AssignmentId
    node: NodeId
    generation: int
    state: str
    start: str | None
    identity: IdentityGrade | None
    pid: int | None
    slots: int
    restarts: int
    exit: ExitReason | None
    running: int | None
    waiting: int | None
    memory_mib: int | None
    routable: bool
    not_routable: str | None


@attrs.frozen(kw_only=True)
class DeploymentStatus:
    """One deployment and its replicas."""

    deployment: DeploymentId
    alias: Alias
    generation: int
    driver: str
    served_name: str
    adopted: bool
    ready: bool
    queue: QueueStatus
    replicas_wanted: int
    not_placed: dict[str, tuple[str, ...]]
    declined: dict[str, str]
    """The nodes that don't run it by their owners' policies, with the word for why."""
    exclusive: bool
    awaited_places: tuple[TakenPlace, ...]
    """What an open place of an exclusive deployment waits for."""
    replicas: tuple[ReplicaStatus, ...]


@attrs.frozen(kw_only=True)
class UsageStatus:
    """Sums over all tenants."""

    requests: int
    succeeded: int
    failed: int
    cancelled: int
    input_tokens: int
    output_tokens: int
    estimated: bool


@attrs.frozen(kw_only=True)
class Alert:
    """Something that an operator should look at."""

    code: str
    message: str


@attrs.frozen(kw_only=True)
class StatusDocument:
    """Everything on one page."""

    version: str
    cluster: str | None
    epoch: int
    sequence: int
    leading: bool
    leader: str | None
    """Where the controller that leads serves, as far as this one knows."""
    snapshot: int
    """The sequence of the newest snapshot of this controller; 0: it has none."""
    draining: bool
    recovering: tuple[RecoveryReason, ...]
    """Why nothing is served before an operator's go (``/admin/v1/recovery``); empty: nothing is recovered."""
    store_ok: bool
    alerts: tuple[Alert, ...]
    nodes: tuple[NodeStatus, ...]
    deployments: tuple[DeploymentStatus, ...]
    usage: UsageStatus
    receipts: tuple[ReceiptDocument, ...]
