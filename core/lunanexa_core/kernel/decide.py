"""``decide``: a command against the state, turned into events and an answer, or into a refusal.

Pure: it changes nothing and reads neither clock nor randomness. ``state`` is the pending one, in which
the commands before this one in the same batch have taken effect.
"""

from typing import TypeAlias, assert_never

import attrs

from lunanexa_core import commands, events
from lunanexa_core.admission.admit import admit
from lunanexa_core.admission.settle import abandoned, settled
from lunanexa_core.commands import Command
from lunanexa_core.deployment import Deployment, DeploymentSpec
from lunanexa_core.drivers.catalog import DRIVERS
from lunanexa_core.events import Event
from lunanexa_core.ids import is_identifier
from lunanexa_core.nodes.heartbeat import heartbeat_events
from lunanexa_core.nodes.liveness import liveness_events
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.placement.reconcile import plan
from lunanexa_core.policy import Policy
from lunanexa_core.state import State
from lunanexa_core.time import Instant
from lunanexa_core.workload import Receipt


@attrs.frozen
class Done:
    """The command took effect and has nothing to tell."""


Answer: TypeAlias = Done | Refusal | Deployment | Receipt | events.WorkloadAdmitted


@attrs.frozen
class Decision:
    """What shall become durable, and what the asker is told once it is."""

    answer: Answer
    events: tuple[Event, ...] = ()


def decide(state: State, observed: Observed, policy: Policy, command: Command, now: Instant) -> Decision:  # noqa: C901  # one arm a command
    """The decision on one command."""
    match command:
        case commands.Begin():
            return _begin(state, command)
        case commands.ApplyDeployment(spec=spec, if_match=if_match):
            return _apply_deployment(state, spec, if_match)
        case commands.RemoveDeployment(deployment=deployment):
            if deployment not in state.deployments:
                return Decision(_no_deployment(deployment))
            return Decision(Done(), (events.DeploymentRemoved(deployment),))
        case commands.Reconcile(fresh=fresh):
            return Decision(Done(), tuple(plan(state, fresh)))
        case commands.EnrolNode():
            return _enrol(state, command)
        case commands.ReportHeartbeat(heartbeat=heartbeat):
            found = heartbeat_events(state, observed, heartbeat)
            return Decision(found) if isinstance(found, Refusal) else Decision(Done(), tuple(found))
        case commands.AdmitWorkload(request=request):
            admitted = admit(state, observed, policy, request, now)
            return Decision(admitted) if isinstance(admitted, Refusal) else Decision(admitted, (admitted,))
        case commands.SettleWorkload(settlement=settlement):
            if settlement.workload in state.open:
                event = settled(state, settlement)
                return Decision(event.receipt, (event,))
            return Decision(state.receipts.get(settlement.workload) or Done())
        case commands.OpenSession() | commands.FailAttempt() | commands.BeginDrain():
            return Decision(Done())
        case commands.Tick():
            return Decision(
                Done(),
                (*liveness_events(state, observed, policy, now), *abandoned(state, observed, policy, now)),
            )
    assert_never(command)


def _begin(state: State, command: commands.Begin) -> Decision:
    found: list[Event] = []
    if state.cluster is None:
        found.append(events.ClusterCreated(command.cluster))
    found.append(events.EpochBegan(command.version))
    for key in command.keys:
        known = state.keys.get(key.key)
        if known == key:
            continue
        if known is not None:
            found.append(events.KeyRevoked(key.key))
        found.append(events.KeyCreated(key))
    for node_id, digest in command.nodes:
        node = state.nodes.get(node_id)
        if node is None or node.bearer_digest != digest:
            found.append(events.NodeRegistered(node_id, digest))
    return Decision(Done(), tuple(found))


def _apply_deployment(state: State, spec: DeploymentSpec, if_match: int | None) -> Decision:
    refusal = _bad_specification(state, spec)
    if refusal is not None:
        return Decision(refusal)
    current = state.deployments.get(spec.deployment)
    generation = 0 if current is None else current.generation
    if if_match is not None and if_match != generation:
        return Decision(
            Refusal(
                outcome=Outcome.STALE_GENERATION,
                message=f"the deployment is at generation {generation}, not {if_match}",
                param="If-Match",
            )
        )
    if current is not None and current.spec == spec:
        return Decision(current)
    deployment = Deployment(spec=spec, generation=generation + 1)
    return Decision(deployment, (events.DeploymentApplied(deployment),))


def _bad_specification(state: State, spec: DeploymentSpec) -> Refusal | None:
    def refuse(param: str, message: str) -> Refusal:
        return Refusal(outcome=Outcome.INVALID_REQUEST, message=message, param=param)

    engine = spec.engine
    if not is_identifier(spec.deployment):
        return refuse("deployment", "a deployment's name has ASCII letters, digits and -_.: only, 256 at most")
    if not 1 <= len(spec.alias) <= 256 or not spec.alias.isprintable():
        return refuse("alias", "an alias has 1 to 256 printable characters")
    if state.deployment_of_alias.get(spec.alias, spec.deployment) != spec.deployment:
        return refuse("alias", f"the alias {spec.alias!r} belongs to another deployment")
    if engine.driver not in DRIVERS:
        return refuse("engine.driver", f"unknown driver {engine.driver[:64]!r}; known: {', '.join(sorted(DRIVERS))}")
    if (engine.binary is None) == (engine.url is None):
        return refuse("engine", "exactly one of engine.binary (to start) and engine.url (to adopt) is needed")
    if not engine.served_name:
        return refuse("engine.served_name", "must not be empty")
    bounds = {
        "replicas": (spec.replicas, 0, 64),
        "engine.slots": (engine.slots, 1, 65_536),
        "engine.start_timeout_ms": (engine.start_timeout_ms, 1_000, 86_400_000),
        "engine.stop_timeout_ms": (engine.stop_timeout_ms, 100, 3_600_000),
        "engine.restart_budget": (engine.restart_budget, 0, 1_000),
    }
    for param, (value, low, high) in bounds.items():
        if not low <= value <= high:
            return refuse(param, f"must be {low} to {high}")
    return None


def _enrol(state: State, command: commands.EnrolNode) -> Decision:
    node = state.nodes[command.node]
    if node.public_key is not None and node.public_key != command.public_key:
        return Decision(
            Refusal(
                outcome=Outcome.PERMISSION_DENIED,
                message="this node is enrolled with another key; an operator must allow it to enrol anew",
            )
        )
    if node.public_key == command.public_key and node.agent_version == command.agent_version:
        return Decision(Done())
    enrolled = events.NodeEnrolled(
        node=command.node, public_key=command.public_key, agent_version=command.agent_version
    )
    return Decision(Done(), (enrolled,))


def _no_deployment(deployment: str) -> Refusal:
    return Refusal(
        outcome=Outcome.NOT_FOUND, message=f"there is no deployment {deployment[:256]!r}", param="deployment"
    )
