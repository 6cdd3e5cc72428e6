"""How good a feasible node is for one more replica."""

from collections import Counter

from lunanexa_core.ids import NodeId
from lunanexa_core.state import State


def loads(state: State) -> Counter[NodeId]:
    """Replicas assigned to each node already; fewer is better."""
    return Counter(assignment.node for assignment in state.assignments.values())
