"""A store that lost its newest rows: how that is noticed, and what an operator's go does.

Rows can be lost by a restore, or when a replica that was behind takes a database's place. Nodes and other controllers
may then know more than the store: followed blindly, it would give epochs and generations a second time. Until an
operator says go, the leader decides nothing but what heartbeats bring (:func:`is_suspended`).
"""

from collections.abc import Mapping
from typing import Final

import attrs

from lunanexa_core.commands import (
    Begin,
    BeginDrain,
    Command,
    EnrolNode,
    FailAttempt,
    MintToken,
    OpenSession,
    Rebase,
    RenewCertificate,
    ReportHeartbeat,
    RevokeNode,
    SettleWorkload,
    ShowDocument,
    Tick,
)
from lunanexa_core.deployment import Deployment
from lunanexa_core.events import (
    DeploymentApplied,
    Event,
    NodeGeneration,
    RecoveryBegan,
    StoreRebased,
    TrustChanged,
)
from lunanexa_core.ids import DeploymentId, NodeId
from lunanexa_core.journal import Head
from lunanexa_core.lifecycle.reconcile import AssignmentRefusal
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.recovery_plan import recovery_plan
from lunanexa_core.recovery_reasons import RecoveryCause, RecoveryReason
from lunanexa_core.southbound.heartbeat import Heartbeat
from lunanexa_core.state import State
from lunanexa_core.time import Instant

RECOVERING: Final = Refusal(
    outcome=Outcome.STARTING,
    message="The store is being recovered; an operator must look at it (lunanexa recovery plan) and say go"
    " (lunanexa recovery rebase).",
)
DOCUMENT_WANTED: Final = Refusal(
    outcome=Outcome.DOCUMENT_WANTED,
    message="This node says that it follows a document that the store has not given it; it must hand that in (PUT"
    " document), which an agent of this version does.",
)
_TAKEN: Final = (
    Begin,
    ReportHeartbeat,
    ShowDocument,
    Rebase,
    # Without these no node could tell what it has.
    MintToken,
    EnrolNode,
    RenewCertificate,
    # No time for this to wait.
    RevokeNode,
    # These end what this leader had begun, or write nothing.
    SettleWorkload,
    FailAttempt,
    OpenSession,
    BeginDrain,
)
_OUTDATED: Final = (AssignmentRefusal.ROLLED_BACK.value, AssignmentRefusal.CONTENT_CHANGED.value)


def is_suspended(state: State, command: Command) -> bool:
    """Whether ``command`` must wait for an operator's go."""
    return state.recovery is not None and not isinstance(command, (*_TAKEN, Tick))


def lost_rows(state: State, known: Head) -> tuple[RecoveryReason, ...]:
    """Why to recover when the row that ``known`` ends with is not in the store that ``state`` is made of; nothing
    where the operator's go covered it."""
    if known.epoch <= state.rebased:
        return ()
    return (RecoveryReason(cause=RecoveryCause.ROWS_MISSING, sequence=known.sequence, epoch=known.epoch),)


def is_ahead(state: State, name: NodeId, epoch: int, generation: int) -> bool:
    """Whether no document of this order was given to a node, by what the store holds."""
    return epoch > state.epoch or generation > state.nodes[name].generation


def document_wanted(state: State, observed: Observed, heartbeat: Heartbeat) -> Refusal | None:
    """Whether a node must first show what it says to follow: its word alone would stop a whole fleet."""
    shown = observed.shown.get(heartbeat.node, (0, 0))
    is_shown = heartbeat.epoch <= shown[0] and heartbeat.generation <= shown[1]
    if is_shown or not is_ahead(state, heartbeat.node, heartbeat.epoch, heartbeat.generation):
        return None
    return DOCUMENT_WANTED


def heartbeat_recovery(state: State, observed: Observed, heartbeat: Heartbeat) -> list[Event]:
    """What follows from a node that has a newer document than the store can have given it, and has shown it
    (:func:`document_wanted`). A document from before the last go tells nothing new: the node's generation is raised
    above it."""
    if state.recovery is not None:
        return []
    if not is_ahead(state, heartbeat.node, heartbeat.epoch, heartbeat.generation):
        return _replaced(state, observed, heartbeat) if state.rebased else []
    if heartbeat.epoch <= state.rebased:
        return _raised(state, state.rebased, (heartbeat,))
    return [
        RecoveryBegan(
            (
                RecoveryReason(
                    cause=RecoveryCause.NODE_AHEAD,
                    epoch=heartbeat.epoch,
                    node=heartbeat.node,
                    generation=heartbeat.generation,
                ),
            )
        )
    ]


def _replaced(state: State, observed: Observed, heartbeat: Heartbeat) -> list[Event]:
    """Of a store that was rebased: what a node does not follow because it has another content of the same generation,
    or a newer one, gets a generation above that, once: each starts the deployment anew on all of its nodes."""
    reports = {report.assignment: report.generation for report in heartbeat.replicas}
    wanted: dict[DeploymentId, int] = {}
    for refused in heartbeat.refused:
        assignment, has = state.assignments.get(refused.assignment), reports.get(refused.assignment)
        if assignment is None or assignment.node != heartbeat.node:
            continue
        deployment = state.deployments.get(assignment.deployment)
        if deployment is None or (state.rebased, heartbeat.node, assignment.deployment) in observed.renewed:
            continue
        if has is not None and refused.refusal in _OUTDATED and deployment.runs <= has:
            _want(wanted, deployment, has)
    return _renewed(state, wanted)


def _want(wanted: dict[DeploymentId, int], deployment: Deployment, above: int) -> None:
    name = deployment.spec.deployment
    wanted[name] = max(wanted.get(name, 0), max(above, deployment.generation) + 1)


def _renewed(state: State, wanted: Mapping[DeploymentId, int]) -> list[Event]:
    """Deployments as they are, in these generations."""
    return [
        DeploymentApplied(Deployment(spec=state.deployments[name].spec, generation=generation))
        for name, generation in sorted(wanted.items())
    ]


def epoch_floor(state: State, observed: Observed) -> int:
    """The highest epoch that is known to have been given; the go takes one above it."""
    reasons = () if state.recovery is None else state.recovery
    return max(
        (
            state.epoch,
            state.rebased,
            *(reason.epoch for reason in reasons),
            *(reading.heartbeat.epoch for reading in observed.nodes.values()),
        )
    )


def rebase(state: State, observed: Observed, policy: Policy, plan: str, now: Instant) -> list[Event] | Refusal:
    """What the go changes. ``plan`` is the digest of the plan that the operator saw."""
    if state.recovery is None:
        return Refusal(outcome=Outcome.STALE_GENERATION, message="Nothing is being recovered.")
    if plan != recovery_plan(state, observed, policy, now).digest:
        return Refusal(
            outcome=Outcome.STALE_GENERATION,
            message="The recovery plan is another by now; look at it again.",
            param="plan",
        )
    heard = tuple(reading.heartbeat for _, reading in sorted(observed.nodes.items()))
    return [*_raised(state, epoch_floor(state, observed), heard, every=True), *_trusted_again(state, heard)]


def _trusted_again(state: State, heard: tuple[Heartbeat, ...]) -> list[TrustChanged]:
    """What is trusted gets a version above all that the nodes tell of, so that they follow it."""
    newest = max((heartbeat.trust_version or 0 for heartbeat in heard), default=0)
    if state.trust is None or newest <= state.trust.version:
        return []
    return [TrustChanged(attrs.evolve(state.trust, version=newest + 1))]


def _raised(state: State, above: int, heartbeats: tuple[Heartbeat, ...], *, every: bool = False) -> list[Event]:
    """Generations above all that the nodes tell of, so that they follow the next documents. The same generation may
    have had another content, so that those of all nodes are raised, once."""
    generations = {name: node.generation + 1 for name, node in sorted(state.nodes.items()) if every}
    wanted: dict[DeploymentId, int] = {}
    for heartbeat in heartbeats:
        own = state.nodes[heartbeat.node].generation
        generations[heartbeat.node] = max(own, heartbeat.generation) + 1
        for report in heartbeat.replicas:
            assignment = state.assignments.get(report.assignment)
            if assignment is None or assignment.deployment not in state.deployments:
                continue
            deployment = state.deployments[assignment.deployment]
            if report.generation > max(assignment.generation, deployment.runs):
                _want(wanted, deployment, report.generation)
    rebased = StoreRebased(
        above=above,
        generations=tuple(NodeGeneration(node, generation) for node, generation in sorted(generations.items())),
    )
    return [rebased, *_renewed(state, wanted)]
