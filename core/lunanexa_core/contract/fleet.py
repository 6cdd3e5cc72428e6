"""What the operator plane answers of nodes and single deployments, and what may be asked for."""

from typing import Any

import attrs

from lunanexa_core.contract.operator import DeploymentStatus, NodeStatus
from lunanexa_core.contract.schema import rules
from lunanexa_core.deployment import DeploymentSpec
from lunanexa_core.ids import Alias, AssignmentId, DeploymentId, NodeId
from lunanexa_core.nodes.directive import REASON_MAX, WITHIN_MS_MAX
from lunanexa_core.placement.preview import Preview
from lunanexa_core.placement.specification import REPLICAS_MAX
from lunanexa_core.southbound.documents import Directive


@attrs.frozen(kw_only=True)
class NodeSummary(NodeStatus):
    """One machine, and how much it does."""

    replicas: int
    in_flight: int
    """Requests in progress."""
    drained: bool
    """It was to be emptied, and runs nothing."""


@attrs.frozen
class NodeList:
    """Nodes by name. ``next_cursor`` goes on where this page ends; ``None``: there is no more."""

    data: tuple[NodeSummary, ...]
    next_cursor: str | None


@attrs.frozen(kw_only=True)
class ReplicaElsewhere:
    """Another replica of the same deployment."""

    assignment: AssignmentId
    node: NodeId
    state: str
    routable: bool


@attrs.frozen(kw_only=True)
class NodeReplica:
    """A replica on a node. ``deployment`` is ``None`` for one that is no longer assigned and has yet to stop."""

    assignment: AssignmentId
    deployment: DeploymentId | None
    alias: Alias | None
    state: str
    in_flight: int
    routable: bool
    not_routable: str | None
    elsewhere: tuple[ReplicaElsewhere, ...]


@attrs.frozen(kw_only=True)
class NodeDocument(NodeStatus):
    """One machine, and everything on it."""

    replicas: tuple[NodeReplica, ...]
    in_flight: int
    drained: bool


@attrs.frozen(kw_only=True)
class DirectiveRequest:
    """What a node shall do."""

    directive: Directive
    reason: str | None = attrs.field(default=None, metadata=rules(maxLength=REASON_MAX))
    within_ms: int | None = attrs.field(default=None, metadata=rules(minimum=0, maximum=WITHIN_MS_MAX))
    """How long a drain or a retirement may take: what can't go sooner goes then. ``None``: ten minutes."""


@attrs.frozen(kw_only=True)
class ScaleRequest:
    """How many replicas there shall be."""

    replicas: int = attrs.field(metadata=rules(minimum=0, maximum=REPLICAS_MAX))


@attrs.frozen(kw_only=True)
class DeploymentDocument:
    """One deployment: what was asked for, and what is."""

    spec: DeploymentSpec
    generation: int
    status: DeploymentStatus


@attrs.frozen(kw_only=True)
class FieldChange:
    """A field of the specification, by its dotted name."""

    field: str
    before: Any
    after: Any


@attrs.frozen(kw_only=True)
class DeploymentPlan(Preview):
    """What would happen at once; nothing of it did."""

    fields: tuple[FieldChange, ...]
