"""Can a node run one more replica of a deployment? All checks run, and all reasons are kept."""

import enum

from lunanexa_core.events import Liveness
from lunanexa_core.nodes.policy import OF_SUMS
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.state import Node


class NotFeasible(enum.Enum):
    """Why a node is no place for a replica."""

    NOT_ENROLLED = "the node has not enrolled"
    NODE_LOST = "the node is lost"
    NODE_DIRECTIVE = "the node takes no new work"
    ALREADY_THERE = "the node runs a replica of this deployment"
    DECLINED = "the node's owner does not let it run there"
    FULL = "the node has no room for it by its owner's rule"


def why_not_feasible(node: Node, *, taken: bool, declined: str | None) -> tuple[NotFeasible, ...]:
    """All reasons against ``node``; none: it can take the replica. ``taken``: it has one of the deployment;
    ``declined``: its word for why it would not run one."""
    reasons: list[NotFeasible] = []
    if node.public_key is None:
        reasons.append(NotFeasible.NOT_ENROLLED)
    if node.liveness is Liveness.LOST:
        reasons.append(NotFeasible.NODE_LOST)
    if node.directive is not Directive.ACTIVE:
        reasons.append(NotFeasible.NODE_DIRECTIVE)
    if taken:
        reasons.append(NotFeasible.ALREADY_THERE)
    if declined is not None:
        reasons.append(NotFeasible.FULL if declined in OF_SUMS else NotFeasible.DECLINED)
    return tuple(reasons)
