"""``decide``: a command against the state, turned into events and an answer, or into a refusal.

Pure: it changes nothing and reads neither clock nor randomness. ``state`` is the pending one, in which
the commands before this one in the same batch have taken effect.
"""

from typing import TypeAlias, assert_never

import attrs

from lunanexa_core import commands, events
from lunanexa_core.admission.admit import admit
from lunanexa_core.admission.idempotency import freed
from lunanexa_core.admission.key_rules import create_key, revoke_key
from lunanexa_core.admission.settle import abandoned, cancelled, settled
from lunanexa_core.binding import Ended
from lunanexa_core.commands import Command
from lunanexa_core.deployment import Deployment, DeploymentSpec
from lunanexa_core.events import Event
from lunanexa_core.identity.enrol import enrol, mint_token
from lunanexa_core.identity.renew import renew
from lunanexa_core.identity.revoke import address, revoke
from lunanexa_core.identity.rotate import begin_trust, rotate, rotation_step
from lunanexa_core.ledger_retention import prune_refusal
from lunanexa_core.nodes.budget import allowed
from lunanexa_core.nodes.directive import set_directive
from lunanexa_core.nodes.heartbeat import heartbeat_events
from lunanexa_core.nodes.liveness import liveness_events
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.placement.change import changed
from lunanexa_core.placement.reconcile import plan
from lunanexa_core.policy import Policy
from lunanexa_core.recovery import RECOVERING, document_wanted, heartbeat_recovery, is_suspended, rebase
from lunanexa_core.state import State
from lunanexa_core.time import Instant
from lunanexa_core.workload import Receipt


@attrs.frozen
class Done:
    """The command took effect and has nothing to tell."""


Answer: TypeAlias = (
    Done
    | Refusal
    | Deployment
    | Receipt
    | Ended
    | events.WorkloadAdmitted
    | events.KeyCreated
    | events.EnrolmentTokenMinted
)


@attrs.frozen
class Decision:
    """What shall become durable, and what the asker is told once it is."""

    answer: Answer
    events: tuple[Event, ...] = ()
    withheld: bool = False
    """Whether a heartbeat tells of more than its node has budget for: the rest waits for another."""


def decide(state: State, observed: Observed, policy: Policy, command: Command, now: Instant) -> Decision:  # noqa: C901  # one arm a command
    """The decision on one command."""
    if is_suspended(state, command):
        return Decision(RECOVERING)
    match command:
        case commands.Begin():
            return _begin(state, command)
        case commands.ApplyDeployment(spec=spec, if_match=if_match):
            return _apply_deployment(state, spec, if_match)
        case commands.ScaleDeployment(deployment=deployment, replicas=replicas, if_match=if_match):
            known = state.deployments.get(deployment)
            if known is None:
                return Decision(_no_deployment(deployment))
            return _apply_deployment(state, attrs.evolve(known.spec, replicas=replicas), if_match)
        case commands.RemoveDeployment(deployment=deployment):
            if deployment not in state.deployments:
                return Decision(_no_deployment(deployment))
            return Decision(Done(), (events.DeploymentRemoved(deployment),))
        case commands.CreateKey(key=key):
            created = create_key(state, key, now)
            return Decision(created) if isinstance(created, Refusal) else Decision(created, (created,))
        case commands.RevokeKey(key=key_id):
            revoked = revoke_key(state, key_id, now)
            return Decision(revoked) if isinstance(revoked, Refusal) else Decision(Done(), (revoked,))
        case commands.Reconcile(fresh=fresh):
            return Decision(Done(), tuple(plan(state, observed, policy, fresh, now)))
        case commands.SetDirective():
            return _done(set_directive(state, command))
        case commands.MintToken():
            minted = mint_token(state, command, now)
            return Decision(minted) if isinstance(minted, Refusal) else Decision(minted, (minted,))
        case commands.EnrolNode():
            return _done(enrol(state, command, now))
        case commands.RenewCertificate():
            return _done(renew(state, policy, command, now))
        case commands.RevokeNode():
            return _done(revoke(state, command))
        case commands.AddressNode():
            return _done(address(state, command))
        case commands.RotateTrust():
            return _done(rotate(state, command))
        case commands.ReportHeartbeat():
            return _hear(state, observed, policy, command, now)
        case commands.AdmitWorkload(request=request):
            admitted = admit(state, observed, policy, request, now)
            return Decision(admitted, (admitted,) if isinstance(admitted, events.WorkloadAdmitted) else ())
        case commands.SettleWorkload(settlement=settlement):
            if settlement.workload in state.open:
                event = settled(state, settlement)
                return Decision(event.receipt, (event,))
            return Decision(state.receipts.get(settlement.workload) or Done())
        case commands.CancelWorkload(workload=workload, key=key_id):
            ended = cancelled(state, observed, workload, key_id, now)
            if ended is None or isinstance(ended, Refusal):
                return Decision(ended or Done())
            return Decision(ended.receipt, (ended,))
        case commands.PruneLedger(pruned=pruned):
            refused = prune_refusal(state, pruned)
            return Decision(Done(), (pruned,)) if refused is None else Decision(refused)
        case commands.Rebase(plan=seen):
            rebased = rebase(state, observed, policy, seen, now)
            return Decision(rebased) if isinstance(rebased, Refusal) else Decision(Done(), tuple(rebased))
        case commands.ShowDocument() | commands.OpenSession() | commands.FailAttempt() | commands.BeginDrain():
            return Decision(Done())
        case commands.Tick():
            return _tick(state, observed, policy, now)
    assert_never(command)


def _hear(
    state: State, observed: Observed, policy: Policy, command: commands.ReportHeartbeat, now: Instant
) -> Decision:
    heartbeat = command.heartbeat
    found = heartbeat_events(state, observed, command)
    if isinstance(found, Refusal):
        return Decision(found)
    wanted = document_wanted(state, observed, heartbeat)
    if wanted is not None:
        return Decision(wanted)
    news = [*found, *heartbeat_recovery(state, observed, heartbeat)]
    taken = allowed(observed.budgets.get(heartbeat.node), policy, news, now)
    return Decision(Done(), tuple(taken), withheld=len(taken) < len(news))


def _tick(state: State, observed: Observed, policy: Policy, now: Instant) -> Decision:
    if state.recovery is not None:
        return Decision(Done())
    silent = liveness_events(state, observed, policy, now)
    turned = rotation_step(state, observed)
    steps = () if turned is None else (turned,)
    return Decision(Done(), (*silent, *steps, *abandoned(state, observed, policy, now), *freed(state, policy, now)))


def _begin(state: State, command: commands.Begin) -> Decision:
    found: list[Event] = []
    if state.cluster is None:
        found.append(events.ClusterCreated(command.cluster))
    found.append(events.EpochBegan(version=command.version, holder=command.holder, node_url=command.node_url))
    known_reasons = state.recovery or ()
    new_reasons = tuple(reason for reason in command.recovery if reason not in known_reasons)
    if new_reasons:
        found.append(events.RecoveryBegan((*known_reasons, *new_reasons)))
    for key in command.keys:
        known = state.keys.get(key.key)
        if known == key:
            continue
        if known is not None:
            found.append(events.KeyRevoked(key.key))
        found.append(events.KeyCreated(key))
    trust = begin_trust(state, command)
    if trust is not None:
        found.append(trust)
    return Decision(Done(), tuple(found))


def _apply_deployment(state: State, spec: DeploymentSpec, if_match: int | None) -> Decision:
    deployment = changed(state, spec, if_match)
    if isinstance(deployment, Refusal) or deployment == state.deployments.get(spec.deployment):
        return Decision(deployment)
    return Decision(deployment, (events.DeploymentApplied(deployment),))


def _done(found: Event | Refusal | None) -> Decision:
    """Of what has nothing to tell but that it is so."""
    if isinstance(found, Refusal):
        return Decision(found)
    return Decision(Done(), () if found is None else (found,))


def _no_deployment(deployment: str) -> Refusal:
    return Refusal(
        outcome=Outcome.NOT_FOUND, message=f"There is no deployment {deployment[:256]!r}.", param="deployment"
    )
