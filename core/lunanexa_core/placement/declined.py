"""Which nodes don't run a deployment by the word of their machines' owners: no place for it while another node can
have it. What a controller holds against a node is forgotten with the deployment's next engine, and with the node's
next agent, which has read its owner's policy anew."""

from typing import Final

from lunanexa_core.ids import DeploymentId, NodeId
from lunanexa_core.nodes.policy import PolicyRefusal
from lunanexa_core.observed import Declined, Observed
from lunanexa_core.southbound.heartbeat import Heartbeat
from lunanexa_core.state import State

_FOR_GOOD: Final = frozenset(
    one.value
    for one in (
        *(PolicyRefusal.DRIVER, PolicyRefusal.PROGRAM, PolicyRefusal.ADOPTED, PolicyRefusal.ARGUMENT),
        PolicyRefusal.NO_MEMORY_LIMIT,
    )
)
"""Refusals that hold whatever else runs there. Others end when something that is stopping still is gone."""


def note_declined(state: State, observed: Observed, heartbeat: Heartbeat) -> None:
    """Keeps what a heartbeat says, and drops what counts no more."""
    if not heartbeat.refused and not observed.declined:
        return
    node = state.nodes[heartbeat.node]
    kept = {
        one
        for one in observed.declined
        if _counts(state, one) and (one.node != heartbeat.node or one.boot == heartbeat.boot)
    }
    for refused in heartbeat.refused if heartbeat.generation >= node.generation else ():
        assignment = state.assignments.get(refused.assignment)
        if refused.refusal in _FOR_GOOD and assignment is not None and assignment.node == heartbeat.node:
            found = Declined(
                node=heartbeat.node,
                boot=heartbeat.boot,
                deployment=assignment.deployment,
                runs=assignment.generation,
                refusal=refused.refusal,
            )
            if _counts(state, found):
                kept.add(found)
    if kept != observed.declined:
        observed.declined = frozenset(kept)


def declined_by(state: State, observed: Observed, deployment: DeploymentId) -> dict[NodeId, str]:
    """The nodes that don't run what the deployment is now, with their words for why."""
    ours = (one for one in observed.declined if one.deployment == deployment and _counts(state, one))
    return dict(sorted((one.node, one.refusal) for one in ours))


def _counts(state: State, one: Declined) -> bool:
    deployment = state.deployments.get(one.deployment)
    return deployment is not None and deployment.runs == one.runs
