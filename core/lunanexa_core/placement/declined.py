"""Which nodes don't run a deployment by the word of their machines' owners: no place for it while another node can have
it. What a controller holds against a node is forgotten with the deployment's next engine, and with the node's next
agent, which has read its owner's policy anew.

That a node is full holds for as long as everything that stood there does, as it stood: whatever comes on top makes no
room. It is not held against a node that something leaves: who waits for that room stays.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from lunanexa_core.deployment import Assignment
from lunanexa_core.ids import AssignmentId, DeploymentId, NodeId
from lunanexa_core.nodes.policy import OF_SUMS, PolicyRefusal
from lunanexa_core.observed import Declined, Observed
from lunanexa_core.southbound.heartbeat import Heartbeat, ReplicaReport, ReplicaState
from lunanexa_core.state import State

_BY_OWNERS: Final = frozenset(one.value for one in PolicyRefusal)
_ENDING: Final = (ReplicaState.DRAINING, ReplicaState.STOPPING, ReplicaState.ABSENT)
"""Of one that is absent, and told of, the node may have counted the room when it looked last."""


def note_declined(state: State, observed: Observed, heartbeat: Heartbeat, *, gone: bool) -> None:
    """Keeps what a heartbeat says, and drops what counts no more. ``gone``: by this heartbeat something has left the
    node, which may not have looked at its room since."""
    if not heartbeat.refused and not observed.declined:
        return
    kept = {
        one
        for one in observed.declined
        if _counts(state, one) and (one.node != heartbeat.node or one.boot == heartbeat.boot)
    }
    if heartbeat.generation >= state.nodes[heartbeat.node].generation:
        here = {name: one for name, one in state.assignments.items() if one.node == heartbeat.node}
        refused = {one.assignment: one.refusal for one in heartbeat.refused if one.assignment in here}
        found = [one for one in _declined(here, refused, heartbeat, gone=gone) if _counts(state, one)]
        newer = {one.deployment for one in found}
        newer |= {one.deployment for name, one in here.items() if name not in refused}
        kept = {one for one in kept if one.node != heartbeat.node or one.deployment not in newer}
        kept.update(found)
    if kept != observed.declined:
        observed.declined = frozenset(kept)


def declined_by(state: State, observed: Observed, deployment: DeploymentId) -> dict[NodeId, str]:
    """The nodes that don't run what the deployment is now, with their words for why."""
    ours = (one for one in observed.declined if one.deployment == deployment and _counts(state, one))
    return dict(sorted((one.node, one.refusal) for one in ours))


def _declined(
    here: Mapping[AssignmentId, Assignment], refused: Mapping[AssignmentId, str], heartbeat: Heartbeat, *, gone: bool
) -> Iterator[Declined]:
    """What an answer to the newest document says of ``here``, all that is assigned to the node. Of the sums nothing
    while something else leaves, or an older engine of the same replica."""
    present = {one.assignment for one in heartbeat.replicas} | {one.assignment for one in heartbeat.unstarted}
    leaving = {one.assignment for one in heartbeat.replicas if _leaves(one, here, refused)} | present - here.keys()
    replaced = any(
        one.state in _ENDING and one.assignment in here and one.generation < here[one.assignment].generation
        for one in heartbeat.replicas
    )
    # What is refused in a newer generation may stand there in its older one.
    standing = [one for name, one in here.items() if name not in refused or name in present]
    for name, refusal in refused.items():
        of_sums = refusal in OF_SUMS
        if refusal not in _BY_OWNERS or (of_sums and (gone or replaced or leaving - {name})):
            continue
        beside = ((one.assignment, one.generation) for one in standing if of_sums and one.assignment != name)
        yield Declined(
            node=heartbeat.node,
            boot=heartbeat.boot,
            deployment=here[name].deployment,
            runs=here[name].generation,
            refusal=refusal,
            beside=frozenset(beside),
        )


def _leaves(
    report: ReplicaReport, here: Mapping[AssignmentId, Assignment], refused: Mapping[AssignmentId, str]
) -> bool:
    """A node ends what is not assigned to it, what it refuses and what has a newer generation; but not what it refuses
    in a newer generation alone."""
    assignment = here.get(report.assignment)
    if assignment is None or report.state in _ENDING:
        return True
    return (report.generation == assignment.generation) == (report.assignment in refused)


def _counts(state: State, one: Declined) -> bool:
    deployment = state.deployments.get(one.deployment)
    if deployment is None or deployment.runs != one.runs:
        return False
    beside = ((state.assignments.get(name), generation) for name, generation in one.beside)
    return all(other is not None and other.generation == generation for other, generation in beside)
