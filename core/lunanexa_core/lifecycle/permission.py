"""What of a node's world the machine's owner forbids: what runs already, and what shall run beside it."""

from collections.abc import Mapping

from lunanexa_core.ids import AssignmentId
from lunanexa_core.lifecycle.record import ReplicaRecord
from lunanexa_core.nodes.policy import NodePolicy, PolicyRefusal, policy_refusal
from lunanexa_core.southbound.documents import DesiredAssignment

Refusals = dict[AssignmentId, PolicyRefusal]


def judge(
    policy: NodePolicy,
    wanted: Mapping[AssignmentId, DesiredAssignment],
    records: Mapping[AssignmentId, ReplicaRecord],
) -> tuple[Refusals, Refusals]:
    """Which replicas may not go on, and which of ``wanted`` may not be followed.

    What runs comes before what is new, and of what runs what is wanted comes first. What is on its way out keeps its
    room until it is gone, so that the sums hold at every moment."""
    forbidden: Refusals = {}
    kept: list[DesiredAssignment] = []
    for name in sorted(records, key=lambda name: (name not in wanted, name)):
        assignment = records[name].assignment
        refusal = policy_refusal(policy, assignment, beside=kept)
        if refusal is None:
            kept.append(assignment)
        else:
            forbidden[name] = refusal
    refused: Refusals = {}
    there = [record.assignment for record in records.values()]
    for name, assignment in wanted.items():
        runs = name in records and records[name].assignment.generation == assignment.generation
        refusal = forbidden.get(name) if runs else policy_refusal(policy, assignment, beside=there)
        if refusal is not None:
            refused[name] = refusal
        elif not runs:
            there.append(assignment)
    return forbidden, refused
