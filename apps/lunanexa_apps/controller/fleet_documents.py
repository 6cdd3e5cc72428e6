"""Documents of nodes, with what runs on each and where else it runs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.status import node_status
from lunanexa_core.canonical import JsonValue
from lunanexa_core.events import Liveness
from lunanexa_core.identity.enrol import good_tokens
from lunanexa_core.identity.revoke import no_node
from lunanexa_core.ids import AssignmentId, NodeId
from lunanexa_core.outcomes import Refusal
from lunanexa_core.placement.standing import EMPTYING
from lunanexa_core.routing.routable import why_not_routable
from lunanexa_core.state import Node


def node_page(kernel: Kernel, limit: int, cursor: str | None) -> JsonValue:
    """Nodes and those that may yet enrol, by name, and how much each does; those behind ``cursor``."""
    there, tokens = _by_node(kernel), good_tokens(kernel.state, kernel.now())
    nodes = {name: Node(node=name) for name in tokens} | kernel.state.nodes
    names = sorted(name for name in nodes if cursor is None or name > cursor)
    return {
        "data": [
            {
                **node_status(kernel, nodes[name], tokens.get(name)),
                "replicas": len(there.get(name, ())),
                "in_flight": sum(_in_flight(kernel, replica) for replica in there.get(name, ())),
                "drained": _is_drained(nodes[name], there.get(name, ())),
            }
            for name in names[:limit]
        ],
        "next_cursor": names[limit - 1] if len(names) > limit else None,
    }


def node_document(kernel: Kernel, name: NodeId) -> JsonValue | Refusal:
    """A node or one that may yet enrol, and everything on it."""
    token = good_tokens(kernel.state, kernel.now()).get(name)
    node = kernel.state.nodes.get(name, None if token is None else Node(node=name))
    if node is None:
        return no_node(name)
    there = _by_node(kernel).get(name, ())
    return {
        **node_status(kernel, node, token),
        "replicas": [_replica(kernel, name) for name in there],
        "in_flight": sum(_in_flight(kernel, name) for name in there),
        "drained": _is_drained(node, there),
    }


def field_changes(before: Any, after: Any, path: str = "") -> list[JsonValue]:
    """The fields that differ, by their dotted names; of a new specification those that it sets."""
    if isinstance(after, Mapping) and isinstance(before, Mapping | None):
        known = before or {}
        deeper = [field_changes(known.get(name), value, f"{path}{name}.") for name, value in after.items()]
        return [change for changes in deeper for change in changes]
    return [] if before == after else [{"field": path.removesuffix("."), "before": before, "after": after}]


def _by_node(kernel: Kernel) -> dict[NodeId, list[AssignmentId]]:
    """What is assigned to each node, and what it has yet to stop; in order."""
    state = kernel.state
    found: dict[NodeId, set[AssignmentId]] = {node: set() for node in state.nodes}
    for name, assignment in state.assignments.items():
        found[assignment.node].add(name)
    for name, node in state.replica_node.items():
        found[node].add(name)
    return {node: sorted(names) for node, names in found.items()}


def _is_drained(node: Node, there: Sequence[AssignmentId]) -> bool:
    """Of a lost node nobody can know; what it had is assigned to it no more."""
    return node.directive in EMPTYING and (node.retired or not there) and node.liveness is not Liveness.LOST


def _replica(kernel: Kernel, name: AssignmentId) -> JsonValue:
    state = kernel.state
    assignment, (shown, routable, reason) = state.assignments.get(name), _standing(kernel, name)
    deployment = None if assignment is None else state.deployments.get(assignment.deployment)
    elsewhere = () if assignment is None else tuple(_elsewhere(kernel, name, assignment.deployment))
    return {
        "assignment": name,
        "deployment": None if deployment is None else deployment.spec.deployment,
        "alias": None if deployment is None else deployment.spec.alias,
        "state": shown,
        "in_flight": _in_flight(kernel, name),
        "routable": routable,
        "not_routable": reason,
        "elsewhere": list(elsewhere),
    }


def _elsewhere(kernel: Kernel, own: AssignmentId, deployment: str) -> Iterator[JsonValue]:
    for name, assignment in sorted(kernel.state.assignments.items()):
        if assignment.deployment == deployment and name != own:
            shown, routable, _ = _standing(kernel, name)
            yield {"assignment": name, "node": assignment.node, "state": shown, "routable": routable}


def _standing(kernel: Kernel, name: AssignmentId) -> tuple[str, bool, str | None]:
    """State as its node says, whether it is granted requests, and why not."""
    report = kernel.state.replicas.get(name)
    if report is None:
        return "assigned", False, None
    reason = why_not_routable(kernel.state, kernel.observed, kernel.policy, report, kernel.now())
    return report.state.value, reason is None, None if reason is None else reason.value


def _in_flight(kernel: Kernel, name: AssignmentId) -> int:
    report = kernel.state.replicas.get(name)
    return 0 if report is None else kernel.observed.slots_held.get(report.start, 0)
