"""The commands: everything that may be asked of the kernel. Fresh identifiers come along as arguments."""

from typing import TypeAlias

import attrs

from lunanexa_core.deployment import DeploymentSpec
from lunanexa_core.events import LedgerPruned
from lunanexa_core.identity.certificate import NodeCertificate
from lunanexa_core.identity.trust import Authority, SigningKey
from lunanexa_core.ids import AssignmentId, ClusterId, DeploymentId, HolderId, KeyId, NodeId, SessionId, WorkloadId
from lunanexa_core.keys import ApiKey
from lunanexa_core.recovery_reasons import RecoveryReason
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.southbound.heartbeat import Heartbeat
from lunanexa_core.workload import Attempt, Settlement, WorkloadRequest


@attrs.frozen(kw_only=True)
class Begin:
    """The first command of a leader: names the cluster once, and brings what the installation holds."""

    cluster: ClusterId
    version: str
    holder: HolderId | None = None
    """The installation."""
    node_url: str | None = None
    """Where nodes reach this controller; ``None``: they are not told."""
    keys: tuple[ApiKey, ...] = ()
    authority: Authority
    """Which authority a cluster begins with that trusts none of :attr:`held`."""
    signing_key: SigningKey
    held: frozenset[str] = frozenset()
    """Fingerprints of all authorities whose keys the installation has; ``authority`` is one, named or not."""
    recovery: tuple[RecoveryReason, ...] = ()
    """Why the store may have lost its newest rows."""


@attrs.frozen(kw_only=True)
class ApplyDeployment:
    """Create or change a deployment. ``if_match``: only from this generation (0: only when new)."""

    spec: DeploymentSpec
    if_match: int | None = None


@attrs.frozen(kw_only=True)
class ScaleDeployment:
    """Another number of replicas. ``if_match``: only from this generation."""

    deployment: DeploymentId
    replicas: int
    if_match: int | None = None


@attrs.frozen
class RemoveDeployment:
    """Serve it no more."""

    deployment: DeploymentId


@attrs.frozen
class CreateKey:
    """Bring a key into force; its secret is known here by its digest alone."""

    key: ApiKey


@attrs.frozen
class RevokeKey:
    """Void a key, for its next request and for those in progress."""

    key: KeyId


@attrs.frozen
class Reconcile:
    """Bring assignments in line with deployments. ``fresh`` are identifiers for what must be placed;
    what does not find one waits for the next round."""

    fresh: tuple[AssignmentId, ...]


@attrs.frozen(kw_only=True)
class SetDirective:
    """What a node as a whole shall do. ``within_ms``: how long its emptying may take; ``None``: as it was said before,
    else by the policy. ``if_match``: only from this generation of its document."""

    node: NodeId
    directive: Directive
    reason: str | None = None
    within_ms: int | None = None
    if_match: int | None = None


@attrs.frozen(kw_only=True)
class EnrolNode:
    """A node brings its signing key, which it has shown to hold, and a token; ``certificate`` was issued for it."""

    node: NodeId
    public_key: str
    agent_version: str
    token: str
    digest: str
    """Of the token's secret, as it was presented."""
    certificate: NodeCertificate
    data_address: str | None = None


@attrs.frozen(kw_only=True)
class MintToken:
    """Let a node enrol. ``again``: though it is enrolled, or was. ``loopback``: it is on the controller's own machine,
    and may do without a data listener."""

    node: NodeId
    token: str
    digest: str
    again: bool = False
    loopback: bool = False


@attrs.frozen(kw_only=True)
class RenewCertificate:
    """A node asked for another certificate, signed by its enrolled key; ``certificate`` was issued for it."""

    node: NodeId
    public_key: str
    """Which key that was."""
    certificate: NodeCertificate
    by_challenge: bool
    agent_version: str


@attrs.frozen(kw_only=True)
class RevokeNode:
    """Void a node's certificates and its key."""

    node: NodeId
    reason: str | None = None


@attrs.frozen(kw_only=True)
class AddressNode:
    """Reach a node's data listener there; ``None``: it has none, which only a token for the controller's own machine
    allows."""

    node: NodeId
    data_address: str | None


@attrs.frozen(kw_only=True)
class RotateTrust:
    """Exchange authority and signing key for these, as nodes follow. While that goes on, another changes nothing."""

    authority: Authority
    signing_key: SigningKey


@attrs.frozen
class ReportHeartbeat:
    """A heartbeat whose signature was verified, with ``public_key``."""

    heartbeat: Heartbeat
    public_key: str


@attrs.frozen(kw_only=True)
class ShowDocument:
    """A node handed in a document of this order that it follows. It is signed by a key of this cluster and is for this
    node."""

    node: NodeId
    epoch: int
    generation: int


@attrs.frozen
class OpenSession:
    """A gateway opens or renews its session."""

    session: SessionId


@attrs.frozen
class AdmitWorkload:
    """A caller asks for work."""

    request: WorkloadRequest


@attrs.frozen
class SettleWorkload:
    """A gateway tells how a workload ended."""

    settlement: Settlement


@attrs.frozen
class CancelWorkload:
    """The key that a workload was admitted by wants its end."""

    workload: WorkloadId
    key: KeyId


@attrs.frozen
class FailAttempt:
    """A gateway gives a grant back and asks for another replica."""

    workload: WorkloadId
    attempt: Attempt


@attrs.frozen
class Rebase:
    """An operator's go: recovery ends. ``plan`` is the digest of the plan that was looked at."""

    plan: str


@attrs.frozen
class BeginDrain:
    """Admit nothing new in this process from now on."""


@attrs.frozen
class PruneLedger:
    """Let the ledger's rows up to the event's prune point leave the store."""

    pruned: LedgerPruned


@attrs.frozen
class Tick:
    """Time passed: the janitor turns what has expired into events."""


Command: TypeAlias = (
    Begin
    | ApplyDeployment
    | ScaleDeployment
    | RemoveDeployment
    | CreateKey
    | RevokeKey
    | Reconcile
    | SetDirective
    | EnrolNode
    | MintToken
    | RenewCertificate
    | RevokeNode
    | AddressNode
    | RotateTrust
    | ReportHeartbeat
    | ShowDocument
    | OpenSession
    | AdmitWorkload
    | SettleWorkload
    | CancelWorkload
    | FailAttempt
    | Rebase
    | BeginDrain
    | PruneLedger
    | Tick
)
