"""How good a feasible node is for one more replica."""

from lunanexa_core.state import Node, State


def load(state: State, node: Node) -> int:
    """Replicas assigned to the node already; fewer is better."""
    return sum(1 for assignment in state.assignments.values() if assignment.node == node.node)
