"""Decisions that change the fleet: deployments, nodes, heartbeats, time."""

import attrs
import pytest

from lunanexa_core import events
from lunanexa_core.commands import (
    ApplyDeployment,
    Reconcile,
    RemoveDeployment,
    SettleWorkload,
    Tick,
)
from lunanexa_core.deployment import Assignment, Deployment
from lunanexa_core.events import Event, Liveness, UnknownEvent, kind_for
from lunanexa_core.identity.trust import first_trust
from lunanexa_core.ids import Alias, AssignmentId, BootId, DeploymentId, KeyId, NodeId, WorkloadId
from lunanexa_core.kernel.absorb import absorb
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import Decision, Done, decide
from lunanexa_core.keys import derive_engine_key
from lunanexa_core.nodes.heartbeat import REPLICAS_MAX
from lunanexa_core.nodes.liveness import judge
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.placement.feasible import NotFeasible
from lunanexa_core.placement.reconcile import plan
from lunanexa_core.placement.roster import refusals
from lunanexa_core.southbound.build import desired_state
from lunanexa_core.southbound.heartbeat import EngineReadings, ExitReason, ReplicaState
from lunanexa_core.state import PAST_BOOTS, RECENT_RECEIPTS, State
from lunanexa_core.workload import Settlement
from tests.core.builders import (
    ASSIGNMENT,
    AUTHORITY,
    BOOT,
    DEPLOYMENT,
    NODE,
    NOW,
    POLICY,
    SIGNING_KEY,
    after,
    api_key,
    begin,
    engine,
    enrolled_events,
    heard,
    heartbeat,
    report,
    reported,
    request,
    serving_events,
    spec,
    state_of,
)

FRESH = tuple(AssignmentId(f"asg_{number}") for number in range(10, 14))


def refused(decision: Decision) -> Refusal:
    assert isinstance(decision.answer, Refusal), decision.answer
    assert not decision.events
    return decision.answer


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"deployment": DeploymentId("a b")}, "deployment"),
        ({"alias": Alias("")}, "alias"),
        ({"alias": Alias("a\n")}, "alias"),
        ({"engine": engine(driver="nope")}, "engine.driver"),
        ({"engine": engine(binary=None)}, "engine"),
        ({"engine": engine(url="http://127.0.0.1:1")}, "engine"),
        ({"engine": engine(served_name="")}, "engine.served_name"),
        ({"engine": engine(binary=None, url="https://x/v1")}, "engine.url"),
        ({"engine": engine(binary="lunanexa-engine")}, "engine.binary"),
        ({"engine": engine(model_path="m.gguf")}, "engine.model_path"),
        ({"engine": engine(context_tokens=-1)}, "engine.context_tokens"),
        ({"engine": engine(slots=0)}, "engine.slots"),
        ({"engine": engine(start_timeout_ms=1)}, "engine.start_timeout_ms"),
        ({"engine": engine(stop_timeout_ms=1)}, "engine.stop_timeout_ms"),
        ({"engine": engine(restart_budget=-1)}, "engine.restart_budget"),
        ({"engine": engine(memory_mib=0)}, "engine.memory_mib"),
        ({"engine": engine(memory_wait_ms=1)}, "engine.memory_wait_ms"),
        ({"engine": engine(memory_limit_mib=-1)}, "engine.memory_limit_mib"),
        ({"engine": engine(binary=None, url="http://h:1", memory_mib=1)}, "engine.memory_mib"),
        ({"engine": engine(binary=None, url="http://h:1", memory_limit_mib=1)}, "engine.memory_limit_mib"),
        ({"replicas": 65}, "replicas"),
    ],
)
def test_a_bad_specification_names_its_field(changes: dict[str, object], param: str) -> None:
    decision = decide(state_of(serving_events()), heard(), POLICY, ApplyDeployment(spec=spec(**changes)), NOW)
    refusal = refused(decision)
    assert (refusal.outcome, refusal.param) == (Outcome.INVALID_REQUEST, param)


def test_an_alias_belongs_to_one_deployment() -> None:
    other = spec(deployment=DeploymentId("d2"))
    refusal = refused(decide(state_of(serving_events()), heard(), POLICY, ApplyDeployment(spec=other), NOW))
    assert refusal.param == "alias"


def test_generations_fence_writers() -> None:
    state = state_of(serving_events())
    changed = spec(engine=engine(slots=3))
    stale = refused(decide(state, heard(), POLICY, ApplyDeployment(spec=changed, if_match=7), NOW))
    assert stale.outcome is Outcome.STALE_GENERATION
    fresh = decide(state, heard(), POLICY, ApplyDeployment(spec=changed, if_match=1), NOW)
    assert fresh.answer == Deployment(spec=changed, generation=2)
    same = decide(state, heard(), POLICY, ApplyDeployment(spec=spec()), NOW)
    assert same == Decision(Deployment(spec=spec(), generation=1))


def test_a_changed_alias_frees_the_old_one() -> None:
    state = state_of(serving_events())
    renamed = decide(state, heard(), POLICY, ApplyDeployment(spec=spec(alias=Alias("new"))), NOW)
    for event in renamed.events:
        apply(state, event, epoch=1)
    assert state.deployment_of_alias == {Alias("new"): DEPLOYMENT}


def test_removing_what_is_not_there_is_404() -> None:
    refusal = refused(decide(State(), Observed(began_mono_ms=0), POLICY, RemoveDeployment(DEPLOYMENT), NOW))
    assert refusal.outcome is Outcome.NOT_FOUND


def test_begin_brings_keys_and_trust_once() -> None:
    first = begin(version="9", keys=(api_key(),))
    state = State()
    for event in decide(state, Observed(began_mono_ms=0), POLICY, first, NOW).events:
        apply(state, event, epoch=1)
    assert state.trust == first_trust(AUTHORITY, SIGNING_KEY)
    again = decide(state, Observed(began_mono_ms=0), POLICY, first, NOW)
    assert again.events == (events.EpochBegan(version="9"),)
    rotated = attrs.evolve(first, keys=(api_key(digest="f" * 64),))
    kinds = [type(event) for event in decide(state, Observed(began_mono_ms=0), POLICY, rotated, NOW).events]
    assert kinds == [events.EpochBegan, events.KeyRevoked, events.KeyCreated]
    for event in decide(state, Observed(began_mono_ms=0), POLICY, rotated, NOW).events:
        apply(state, event, epoch=2)
    assert list(state.key_of_digest) == ["f" * 64]


def test_keys_that_change_their_secrets_with_each_other_both_work() -> None:
    one, two = api_key(digest="a" * 64), api_key(key=KeyId("key_2"), digest="b" * 64)
    state, observed = State(), Observed(began_mono_ms=0)
    for keys in ((one, two), (attrs.evolve(one, digest="b" * 64), attrs.evolve(two, digest="a" * 64))):
        for event in decide(state, observed, POLICY, begin(keys=keys), NOW).events:
            apply(state, event, epoch=1)
    assert state.key_of_digest == {"b" * 64: one.key, "a" * 64: two.key}


def test_replicas_are_placed_scaled_moved_and_removed() -> None:
    state = state_of([*serving_events()[:3], *enrolled_events(), *enrolled_events(NodeId("node-2"))])
    apply(state, events.DeploymentApplied(Deployment(spec=spec(replicas=3), generation=1)), epoch=1)

    def settle_plan() -> list[Event]:
        done: list[Event] = []
        spare = [AssignmentId(f"asg_{number}") for number in range(20, 40)]
        while changes := plan(state, heard(), POLICY, spare, NOW):
            for change in changes:
                apply(state, change, epoch=1)
                if isinstance(change, events.AssignmentPlaced) and change.assignment.assignment in spare:
                    spare.remove(change.assignment.assignment)
            done.extend(changes)
        return done

    settle_plan()
    assert sorted(assignment.node for assignment in state.assignments.values()) == ["node-1", "node-2"]
    blocked = refusals(state, heard(), state.deployments[DEPLOYMENT])
    assert blocked == {NODE: (NotFeasible.ALREADY_THERE,), NodeId("node-2"): (NotFeasible.ALREADY_THERE,)}
    assert plan(state, heard(), POLICY, (), NOW) == []
    generations = {node: state.nodes[node].generation for node in state.nodes}
    apply(state, events.DeploymentApplied(Deployment(spec=spec(replicas=1), generation=2)), epoch=1)
    settle_plan()
    assert [assignment.generation for assignment in state.assignments.values()] == [2]
    assert all(state.nodes[node].generation > before for node, before in generations.items())
    apply(state, events.DeploymentRemoved(DEPLOYMENT), epoch=1)
    settle_plan()
    assert not state.assignments


def test_a_node_is_no_place_before_it_enrolled_or_when_it_is_lost() -> None:
    state = state_of([*serving_events(), events.NodeRegistered(NodeId("new"))])
    apply(state, events.LivenessChanged(NODE, Liveness.LOST), epoch=1)
    reasons = refusals(state, heard(), Deployment(spec=spec(deployment=DeploymentId("d2")), generation=1))
    assert reasons[NodeId("new")] == (NotFeasible.NOT_ENROLLED,)
    assert reasons[NODE] == (NotFeasible.NODE_LOST,)
    decision = decide(state, heard(), POLICY, Reconcile(FRESH), NOW)
    assert decision.events == ()


def test_heartbeats_are_events_only_where_a_state_changes() -> None:
    state, observed = state_of(serving_events()), heard()
    quiet = decide(state, observed, POLICY, reported(heartbeat(2, report(readings=EngineReadings(running=1)))), NOW)
    assert quiet == Decision(Done())
    crashed = report(
        state=ReplicaState.BACKOFF, exit=ExitReason(kind="exited", code=1, last_lines=("a prompt of a user",))
    )
    loud = decide(state, observed, POLICY, reported(heartbeat(2, crashed)), NOW)
    (event,) = loud.events
    assert isinstance(event, events.ReplicaChanged)
    assert event.report.exit == ExitReason(kind="exited", code=1)
    absorb(state, observed, POLICY, reported(heartbeat(2, crashed)), loud, NOW)
    kept = observed.replicas[ASSIGNMENT].exit
    assert kept is not None
    assert kept.last_lines == ("a prompt of a user",)


def test_a_replica_that_is_no_longer_reported_is_absent() -> None:
    state = state_of(serving_events())
    (event,) = decide(state, heard(), POLICY, reported(heartbeat(2)), NOW).events
    assert isinstance(event, events.ReplicaChanged)
    apply(state, event, epoch=1)
    assert state.replicas == {}
    assert state.replica_node == {}


def test_a_node_speaks_only_of_what_was_assigned_to_it() -> None:
    state = state_of([*serving_events(), *enrolled_events(NodeId("node-2"))])
    liar = heartbeat(1, report(port=6666), report(), node=NodeId("node-2"))
    assert decide(state, heard(), POLICY, reported(liar), NOW).events == ()
    twice = heartbeat(2, report(), report(port=6666))
    assert decide(state, heard(), POLICY, reported(twice), NOW).events == ()
    gone = heartbeat(2, report(), report(assignment=AssignmentId("asg_9"), state=ReplicaState.ABSENT))
    assert decide(state, heard(), POLICY, reported(gone), NOW).events == ()


def test_old_and_superseded_heartbeats_are_refused() -> None:
    state, observed = state_of(serving_events()), heard()
    replayed = refused(decide(state, observed, POLICY, reported(heartbeat(1, report())), NOW))
    assert replayed.outcome is Outcome.STALE_GENERATION
    newer = decide(state, observed, POLICY, reported(heartbeat(1, report(), boot=BootId("boot_2"))), NOW)
    for event in newer.events:
        apply(state, event, epoch=1)
    assert state.nodes[NODE].past_boots == (BOOT,)
    late = refused(decide(state, observed, POLICY, reported(heartbeat(99, report())), NOW))
    assert late.outcome is Outcome.STALE_GENERATION
    for number in range(3, 50):
        apply(state, events.NodeBooted(NODE, BootId(f"boot_{number}")), epoch=1)
    assert len(state.nodes[NODE].past_boots) == PAST_BOOTS
    many = heartbeat(100, *[report()] * (REPLICAS_MAX + 1), boot=BootId("boot_99"))
    assert refused(decide(state, observed, POLICY, reported(many), NOW)).outcome is Outcome.INVALID_REQUEST


def test_silence_makes_a_node_suspect_then_lost_and_a_new_leader_is_patient() -> None:
    state, observed = state_of(serving_events()), heard()
    assert decide(state, observed, POLICY, Tick(), after(POLICY.node_suspect_ms - 1)).events == ()
    suspect = decide(state, observed, POLICY, Tick(), after(POLICY.node_suspect_ms))
    assert suspect.events == (events.LivenessChanged(NODE, Liveness.SUSPECT),)
    lost = decide(state, observed, POLICY, Tick(), after(POLICY.node_lease_ms))
    assert lost.events == (events.LivenessChanged(NODE, Liveness.LOST),)
    fresh = Observed(began_mono_ms=after(POLICY.node_lease_ms).mono_ms)
    assert decide(state, fresh, POLICY, Tick(), after(POLICY.node_lease_ms)).events == ()
    assert judge(fresh, POLICY, NODE, after(POLICY.node_lease_ms)) is Liveness.UNKNOWN
    back = decide(
        state_of([*serving_events(), events.LivenessChanged(NODE, Liveness.LOST)]),
        fresh,
        POLICY,
        reported(heartbeat(2, report())),
        NOW,
    )
    assert back.events == (events.LivenessChanged(NODE, Liveness.READY),)
    unenrolled = state_of([events.NodeRegistered(NodeId("new"))])
    assert decide(unenrolled, fresh, POLICY, Tick(), after(10**9)).events == ()


def test_what_a_dead_gateway_held_is_settled_once_after_its_lease() -> None:
    state, observed = state_of(serving_events()), heard()
    apply(
        state,
        events.WorkloadAdmitted(request=request(), key=api_key().key, tenant=api_key().tenant, deployment=DEPLOYMENT),
        epoch=1,
    )
    observed.nodes.clear()
    assert decide(state, observed, POLICY, Tick(), NOW).events == ()
    settled = decide(state, observed, POLICY, Tick(), after(POLICY.session_lease_ms)).events
    receipts = [event.receipt for event in settled if isinstance(event, events.WorkloadSettled)]
    assert [receipt.settlement.detail for receipt in receipts] == ["gateway_lost"]
    # A new leader gives the gateway one lease to come back.
    state.epoch = 2
    restarted = Observed(began_mono_ms=NOW.mono_ms)
    assert decide(state, restarted, POLICY, Tick(), after(POLICY.session_lease_ms - 1)).events[:0] == ()
    late = decide(state, restarted, POLICY, Tick(), after(POLICY.session_lease_ms)).events
    details = [event.receipt.settlement.detail for event in late if isinstance(event, events.WorkloadSettled)]
    assert details == ["controller_restarted"]


def test_settling_the_unknown_is_harmless_and_receipts_in_memory_are_bounded() -> None:
    state = state_of(serving_events())
    unknown = decide(state, heard(), POLICY, SettleWorkload(Settlement(workload=WorkloadId("wl_x"), outcome=None)), NOW)
    assert unknown == Decision(Done())
    for number in range(RECENT_RECEIPTS + 5):
        apply(
            state,
            events.WorkloadAdmitted(
                request=request(number), key=api_key().key, tenant=api_key().tenant, deployment=DEPLOYMENT
            ),
            epoch=1,
        )
        settlement = Settlement(workload=request(number).workload, outcome=Outcome.CANCELLED_BY_CALLER)
        for event in decide(state, heard(), POLICY, SettleWorkload(settlement), NOW).events:
            apply(state, event, epoch=1)
    assert len(state.receipts) == RECENT_RECEIPTS
    assert state.totals[api_key().tenant].cancelled == RECENT_RECEIPTS + 5


def test_the_desired_state_has_a_key_for_what_we_start_and_none_for_what_we_adopt() -> None:
    state = state_of(serving_events())
    document = desired_state(state, NODE, lambda assignment: derive_engine_key("s", assignment.assignment, 1))
    assert document.order == (1, 1)
    assert document.assignments[0].engine_key == derive_engine_key("s", ASSIGNMENT, 1)
    adopted = spec(engine=engine(driver="generic_openai", binary=None, url="http://127.0.0.1:11434"))
    apply(state, events.DeploymentApplied(Deployment(spec=adopted, generation=1)), epoch=1)
    assert desired_state(state, NODE, lambda _: "k").assignments[0].engine_key is None
    apply(state, events.DeploymentRemoved(DEPLOYMENT), epoch=1)
    assert desired_state(state, NODE, lambda _: "k").assignments == ()


def test_an_event_of_a_newer_version_stops_with_the_remedy() -> None:
    with pytest.raises(UnknownEvent, match="newer"):
        kind_for("node.booted", 2)
    with pytest.raises(UnknownEvent, match="newer"):
        kind_for("future.thing", 1)
    assert kind_for("node.booted", 1).type is events.NodeBooted


def test_an_assignment_of_another_node_is_not_ours() -> None:
    state = state_of(serving_events())
    elsewhere = Assignment(assignment=AssignmentId("asg_7"), deployment=DEPLOYMENT, node=NodeId("node-1"), generation=1)
    apply(state, events.AssignmentPlaced(elsewhere), epoch=1)
    assert state.nodes[NODE].generation == 2
