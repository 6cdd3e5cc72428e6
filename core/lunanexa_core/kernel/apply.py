"""``apply``: the one way in which state changes. Pure but for the state that it is given to change."""

from typing import TypeVar, assert_never

import attrs

from lunanexa_core import events
from lunanexa_core.events import Event
from lunanexa_core.ids import NodeId
from lunanexa_core.southbound.heartbeat import ReplicaState
from lunanexa_core.state import PAST_BOOTS, RECENT_RECEIPTS, Node, OpenWorkload, State, Totals
from lunanexa_core.workload import Receipt

K = TypeVar("K")


def apply(state: State, event: Event, *, epoch: int) -> None:  # noqa: C901  # one arm an event
    """Changes ``state`` by one event of the given epoch. It never refuses: an event was decided."""
    match event:
        case events.ClusterCreated(cluster=cluster):
            state.cluster = cluster
        case events.EpochBegan():
            state.epoch = epoch
        case events.KeyCreated(key=key):
            state.keys[key.key] = key
            state.key_of_digest[key.digest] = key.key
        case events.KeyRevoked(key=key_id):
            del state.key_of_digest[state.keys.pop(key_id).digest]
        case events.NodeRegistered(node=node, bearer_digest=digest):
            known = state.nodes.get(node)
            state.nodes[node] = (
                attrs.evolve(known, bearer_digest=digest) if known else Node(node=node, bearer_digest=digest)
            )
        case events.NodeEnrolled(node=node, public_key=public_key, agent_version=version):
            state.nodes[node] = attrs.evolve(state.nodes[node], public_key=public_key, agent_version=version)
        case events.NodeBooted(node=node, boot=boot):
            known_boot, past = state.nodes[node].boot, state.nodes[node].past_boots
            past = past if known_boot is None else (*past, known_boot)[-PAST_BOOTS:]
            state.nodes[node] = attrs.evolve(state.nodes[node], boot=boot, past_boots=past)
        case events.LivenessChanged(node=node, liveness=liveness):
            state.nodes[node] = attrs.evolve(state.nodes[node], liveness=liveness)
        case events.DeploymentApplied(deployment=deployment):
            _drop_alias(state, deployment.spec.deployment)
            state.deployments[deployment.spec.deployment] = deployment
            state.deployment_of_alias[deployment.spec.alias] = deployment.spec.deployment
        case events.DeploymentRemoved(deployment=deployment_id):
            _drop_alias(state, deployment_id)
            del state.deployments[deployment_id]
        case events.AssignmentPlaced(assignment=assignment):
            state.assignments[assignment.assignment] = assignment
            _next_generation(state, assignment.node)
        case events.AssignmentRemoved(assignment=assignment_id):
            _next_generation(state, state.assignments.pop(assignment_id).node)
        case events.ReplicaChanged(node=node, report=report):
            if report.state is ReplicaState.ABSENT:
                state.replicas.pop(report.assignment, None)
                state.replica_node.pop(report.assignment, None)
            else:
                state.replicas[report.assignment] = report
                state.replica_node[report.assignment] = node
        case events.WorkloadAdmitted(request=request, key=key_id, tenant=tenant, deployment=deployment_id):
            state.open[request.workload] = OpenWorkload(
                request=request, key=key_id, tenant=tenant, deployment=deployment_id, epoch=epoch
            )
            _add(state.open_of_key, key_id, 1)
            _add(state.open_of_deployment, deployment_id, 1)
        case events.WorkloadSettled(receipt=receipt):
            _settle(state, receipt)
        case _:
            assert_never(event)


def _settle(state: State, receipt: Receipt) -> None:
    workload = state.open.pop(receipt.workload)
    _add(state.open_of_key, workload.key, -1)
    _add(state.open_of_deployment, workload.deployment, -1)
    state.receipts[receipt.workload] = receipt
    if len(state.receipts) > RECENT_RECEIPTS:
        del state.receipts[next(iter(state.receipts))]
    state.totals[receipt.tenant] = state.totals.get(receipt.tenant, Totals()).plus(receipt)


def _next_generation(state: State, node: NodeId) -> None:
    state.nodes[node] = attrs.evolve(state.nodes[node], generation=state.nodes[node].generation + 1)


def _drop_alias(state: State, deployment: object) -> None:
    for alias, owner in list(state.deployment_of_alias.items()):
        if owner == deployment:
            del state.deployment_of_alias[alias]


def _add(counter: dict[K, int], key: K, by: int) -> None:
    """Counters that are zero leave the table, so that a table at rest is empty."""
    total = counter.get(key, 0) + by
    assert total >= 0, key
    if total:
        counter[key] = total
    else:
        del counter[key]
