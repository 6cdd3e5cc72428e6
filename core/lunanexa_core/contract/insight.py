"""What operators see of single requests."""

import attrs

from lunanexa_core.contract.operator import ReceiptDocument
from lunanexa_core.ids import Alias, DeploymentId, KeyId, RequestId, TenantId, WorkloadId
from lunanexa_core.routing.decision import RoutingDecision
from lunanexa_core.workload import Dialect, Priority, WorkloadState


@attrs.frozen(kw_only=True)
class RequestDocument:
    """A request in progress. ``place`` counts the waiters before it; ``None``: it does not wait."""

    workload: WorkloadId
    request: RequestId
    tenant: TenantId
    key: KeyId
    alias: Alias
    deployment: DeploymentId
    dialect: Dialect
    stream: bool
    priority: Priority
    state: WorkloadState
    place: int | None
    age_ms: int | None
    deadline_ms: int
    body_bytes: int
    reserved_tokens: int


@attrs.frozen
class RequestList:
    """In progress, then ended; the newest first in both."""

    open: tuple[RequestDocument, ...]
    ended: tuple[ReceiptDocument, ...]


@attrs.frozen(kw_only=True)
class Explanation:
    """Either ``open`` or ``ended`` is there. ``decision`` is the last one; ``None``: none was made, or it is older
    than those that are kept."""

    open: RequestDocument | None
    ended: ReceiptDocument | None
    decision: RoutingDecision | None
