"""What the kernel knows of the fleet: a node's word on what is its own, and nothing of what is gone."""

import attrs

from lunanexa_core.commands import (
    AdmitWorkload,
    Command,
    Reconcile,
    RemoveDeployment,
    SettleWorkload,
    Tick,
)
from lunanexa_core.ids import AssignmentId, NodeId, StartId
from lunanexa_core.kernel.absorb import absorb
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import Done, decide
from lunanexa_core.nodes.liveness import judge
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Refusal
from lunanexa_core.routing.pick import deny_waiting, grant_waiting
from lunanexa_core.routing.rank import free_slots
from lunanexa_core.southbound.heartbeat import EngineReadings, ReplicaState
from lunanexa_core.state import State
from lunanexa_core.workload import Settlement
from tests.core.builders import (
    ASSIGNMENT,
    DEPLOYMENT,
    NODE,
    NOW,
    POLICY,
    after,
    enrolled_events,
    heard,
    heartbeat,
    report,
    reported,
    request,
    serving_events,
    state_of,
)

OTHER = NodeId("node-2")


def fleet() -> tuple[State, Observed]:
    return state_of([*serving_events(), *enrolled_events(OTHER)]), heard()


def ask(state: State, observed: Observed, command: Command, ms: int = 0) -> None:
    decision = decide(state, observed, POLICY, command, after(ms))
    assert not isinstance(decision.answer, Refusal), decision.answer
    for event in decision.events:
        apply(state, event, epoch=1, wall_ms=after(ms).wall_ms)
    absorb(state, observed, POLICY, command, decision, after(ms))


def test_a_node_that_speaks_of_a_replica_of_another_is_not_heard() -> None:
    state, observed = fleet()
    full = report(readings=EngineReadings(running=2))
    ask(state, observed, reported(heartbeat(1, full, node=OTHER)))
    assert observed.replicas == {ASSIGNMENT: report()}
    assert not observed.read_mono_ms
    assert free_slots(observed, POLICY, report(), NOW) == 2
    assert state.replica_node == {ASSIGNMENT: NODE}


def test_the_first_of_two_reports_of_one_replica_counts_everywhere() -> None:
    state, observed = fleet()
    first, second = report(readings=EngineReadings(running=1)), report(start=StartId("st_2"), port=6666)
    ask(state, observed, reported(heartbeat(2, first, second)))
    assert observed.replicas == {ASSIGNMENT: first}
    assert state.replicas == {ASSIGNMENT: report()}


def test_what_a_node_runs_without_an_assignment_is_known_until_it_is_gone() -> None:
    state, observed = fleet()
    stray = report(assignment=AssignmentId("asg_stray"))
    ask(state, observed, reported(heartbeat(1, stray, node=OTHER)))
    ask(state, observed, Tick())
    assert observed.replicas == {ASSIGNMENT: report(), stray.assignment: stray}
    gone = attrs.evolve(stray, state=ReplicaState.ABSENT)
    ask(state, observed, reported(heartbeat(2, gone, node=OTHER)))
    ask(state, observed, Tick())
    assert observed.replicas == {ASSIGNMENT: report()}


def test_of_a_removed_deployment_nothing_is_kept() -> None:
    state, observed = fleet()
    for number in (1, 2, 3):
        ask(state, observed, AdmitWorkload(request(number)))
    assert len(grant_waiting(state, observed, POLICY, NOW)) == 2
    ask(state, observed, reported(heartbeat(2, report(readings=EngineReadings(running=2)))))
    ask(state, observed, RemoveDeployment(DEPLOYMENT))
    ask(state, observed, Reconcile(()))
    # The node has not said yet that it is gone, and one still waits in the queue.
    ask(state, observed, Tick())
    assert list(observed.replicas) == list(observed.read_mono_ms) == [ASSIGNMENT]
    assert list(observed.queues) == [DEPLOYMENT]
    ask(state, observed, reported(heartbeat(3)))
    for number in (1, 2):
        ask(state, observed, SettleWorkload(Settlement(workload=request(number).workload, outcome=None)))
    assert list(observed.service_ms) == [DEPLOYMENT]
    assert len(deny_waiting(state, observed, POLICY, after(POLICY.queue_wait_ms))) == 1
    ask(state, observed, Tick())
    assert not observed.replicas
    assert not observed.read_mono_ms
    assert not observed.service_ms
    assert not observed.queues


def test_a_removed_deployment_takes_no_place_from_one_that_still_waits() -> None:
    state, observed = fleet()
    ask(state, observed, AdmitWorkload(request()))
    ask(state, observed, RemoveDeployment(DEPLOYMENT))
    ask(state, observed, Tick())
    assert list(observed.queues[DEPLOYMENT].waiters) == [request().workload]


def test_a_node_that_was_never_heard_is_not_blamed_for_a_pause_of_ours() -> None:
    state, observed = state_of(serving_events()), Observed(began_mono_ms=NOW.mono_ms)
    observed.stood_still(POLICY.node_lease_ms, after(POLICY.node_lease_ms).mono_ms)
    assert decide(state, observed, POLICY, Tick(), after(POLICY.node_lease_ms)).answer == Done()
    assert not decide(state, observed, POLICY, Tick(), after(POLICY.node_lease_ms)).events
    assert judge(observed, POLICY, NODE, after(2 * POLICY.node_lease_ms)).value == "lost"
