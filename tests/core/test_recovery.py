"""A store that lost its newest rows: when that is noticed, what is taken meanwhile, and what the go changes."""

from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_core import commands
from lunanexa_core.commands import (
    AdmitWorkload,
    ApplyDeployment,
    CancelWorkload,
    Command,
    CreateKey,
    Reconcile,
    RemoveDeployment,
    SettleWorkload,
    ShowDocument,
    Tick,
)
from lunanexa_core.deployment import Deployment
from lunanexa_core.events import (
    DeploymentApplied,
    EpochBegan,
    Event,
    NodeGeneration,
    RecoveryBegan,
    ReplicaChanged,
    StoreRebased,
    WorkloadAdmitted,
    WorkloadSettled,
)
from lunanexa_core.ids import AssignmentId, ClusterId, KeyId, NodeId, TenantId
from lunanexa_core.journal import Head
from lunanexa_core.kernel.absorb import absorb
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import Decision, Done, decide
from lunanexa_core.nodes.heartbeat import AHEAD_MAX
from lunanexa_core.observed import NodeReading, Observed
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.recovery import RECOVERING, epoch_floor, lost_rows
from lunanexa_core.recovery_plan import RecoveryStep, StepKind, recovery_plan
from lunanexa_core.recovery_reasons import RecoveryCause, RecoveryReason
from lunanexa_core.southbound.documents import DesiredState, check_order
from lunanexa_core.southbound.heartbeat import Heartbeat, RefusedAssignment, ReplicaState
from lunanexa_core.state import State
from lunanexa_core.workload import Settlement
from tests.core.builders import (
    ASSIGNMENT,
    DEPLOYMENT,
    NODE,
    NOW,
    POLICY,
    after,
    api_key,
    begin,
    enrolled_events,
    heartbeat,
    report,
    reported,
    request,
    serving_events,
    spec,
    state_of,
)
from tests.examples import examples

OTHER = NodeId("node-2")
STRANGE = AssignmentId("asg_9")
RESTORED = RecoveryReason(cause=RecoveryCause.RESTORED, sequence=7)


def recovering(*more: Event) -> State:
    return state_of([*serving_events(), *more, RecoveryBegan((RESTORED,))])


def heard(*heartbeats: Heartbeat) -> Observed:
    """What a leader knows that was shown all documents that these nodes may tell of."""
    observed = Observed(began_mono_ms=NOW.mono_ms, shown={name: (1 << 40, 1 << 40) for name in (NODE, OTHER)})
    for beat in heartbeats:
        observed.nodes[beat.node] = NodeReading(
            boot=beat.boot, sequence=beat.sequence, arrived_mono_ms=NOW.mono_ms, heartbeat=beat
        )
    return observed


def ahead(
    *, epoch: int = 1, generation: int = 0, node: NodeId = NODE, sequence: int = 1, **changes: object
) -> Heartbeat:
    return attrs.evolve(heartbeat(sequence, report(**changes), node=node), epoch=epoch, generation=generation)


def rebased() -> State:
    return state_of([*serving_events(), StoreRebased(above=9, generations=(NodeGeneration(NODE, 1),))], epoch=3)


def told(state: State, observed: Observed, command: Command) -> Decision:
    return decide(state, observed, POLICY, command, NOW)


def go(state: State, observed: Observed) -> list[Event]:
    found = told(state, observed, commands.Rebase(recovery_plan(state, observed, POLICY, NOW).digest))
    assert not isinstance(found.answer, Refusal), found.answer
    return list(found.events)


# --- noticed ---


@pytest.mark.parametrize(("epoch", "generation"), [(2, 0), (1, 2), (9, 9)])
def test_a_node_that_is_ahead_begins_recovery(epoch: int, generation: int) -> None:
    state = state_of(serving_events())
    found = told(state, heard(), reported(ahead(epoch=epoch, generation=generation))).events
    reason = RecoveryReason(cause=RecoveryCause.NODE_AHEAD, epoch=epoch, node=NODE, generation=generation)
    assert found == (RecoveryBegan((reason,)),)
    apply(state, found[0], epoch=1)
    again = ahead(epoch=epoch, generation=generation, sequence=2)
    assert told(state, heard(), reported(again)).events == (), "it is begun once"


@pytest.mark.parametrize(("epoch", "generation"), [(2, 0), (1, 2), (9, 9)])
@pytest.mark.parametrize("shown", [None, (1, 1), (9, 1), (1, 9), (8, 8)])
@pytest.mark.parametrize("state", [state_of(serving_events()), recovering(), rebased()])
def test_a_node_is_not_believed_to_be_ahead_before_it_shows_its_document(
    epoch: int, generation: int, shown: tuple[int, int] | None, state: State
) -> None:
    claim = ahead(epoch=epoch, generation=generation, state=ReplicaState.FAILED)
    observed = Observed(began_mono_ms=NOW.mono_ms, shown={} if shown is None else {NODE: shown})
    before = state.copy()
    decision = told(state, observed, reported(claim))
    given = epoch <= state.epoch and generation <= state.nodes[NODE].generation
    if given or (shown is not None and epoch <= shown[0] and generation <= shown[1]):
        assert decision.answer == Done()
        return
    assert isinstance(decision.answer, Refusal)
    assert (decision.answer.outcome, decision.events, state) == (Outcome.DOCUMENT_WANTED, (), before)
    absorb(state, observed, POLICY, reported(claim), decision, NOW)
    assert NODE not in observed.nodes, "it is not heard"
    assert observed.claiming == {NODE}
    show = ShowDocument(node=NODE, epoch=9, generation=9)
    answer = told(state, observed, show)
    assert answer == Decision(Done()), "also while the store is recovered, and without a row"
    absorb(state, observed, POLICY, show, answer, NOW)
    heard_now = told(state, observed, reported(claim))
    assert heard_now.answer == Done()
    absorb(state, observed, POLICY, reported(claim), heard_now, NOW)
    assert (NODE in observed.nodes, observed.claiming) == (True, set())


@pytest.mark.parametrize(
    ("lie", "param"),
    [
        (ahead(epoch=1 + AHEAD_MAX + 1), "epoch"),
        (ahead(generation=1 + AHEAD_MAX + 1), "generation"),
        (attrs.evolve(ahead(), trust_version=2 * AHEAD_MAX), "trust_version"),
        (attrs.evolve(ahead(), replicas=(report(generation=1 + AHEAD_MAX + 1),)), "replicas[0].generation"),
    ],
)
@pytest.mark.parametrize("state", [state_of(serving_events()), recovering()], ids=["serving", "recovering"])
def test_a_node_that_is_ahead_of_what_can_have_been_lost_is_not_heard(state: State, lie: Heartbeat, param: str) -> None:
    """Else a go would take numbers above all that documents can hold, and there would be none for ever."""
    refusal = told(state, heard(), reported(lie)).answer
    assert isinstance(refusal, Refusal)
    assert (refusal.outcome, refusal.param) == (Outcome.INVALID_REQUEST, param)


def test_a_node_that_follows_the_newest_document_is_not_ahead() -> None:
    state = state_of(serving_events())
    assert told(state, heard(), reported(ahead(epoch=1, generation=1))).events == ()


def test_a_leader_begins_recovery_for_what_it_was_told() -> None:
    state = state_of(serving_events())
    first = begin(version="9", recovery=(RESTORED,))
    assert told(state, heard(), first).events == (EpochBegan(version="9"), RecoveryBegan((RESTORED,)))
    assert told(recovering(), heard(), first).events == (EpochBegan(version="9"),)
    more = attrs.evolve(RESTORED, epoch=4)
    both = attrs.evolve(first, recovery=(RESTORED, more))
    assert told(recovering(), heard(), both).events == (EpochBegan(version="9"), RecoveryBegan((RESTORED, more)))


def test_a_missing_row_counts_until_a_go_covers_it() -> None:
    state, known = state_of(serving_events()), Head(sequence=70, epoch=5)
    assert lost_rows(state, known) == (RecoveryReason(cause=RecoveryCause.ROWS_MISSING, sequence=70, epoch=5),)
    assert lost_rows(recovering(), known) == lost_rows(state, known)
    state.rebased = 5
    assert lost_rows(state, known) == ()
    state.rebased = 4
    assert lost_rows(state, known) != ()


# --- suspended ---


@pytest.mark.parametrize(
    "command",
    [
        ApplyDeployment(spec=spec()),
        RemoveDeployment(DEPLOYMENT),
        CreateKey(api_key(key=KeyId("key_2"), digest="ab" * 32)),
        Reconcile((STRANGE,)),
        AdmitWorkload(request()),
        CancelWorkload(request().workload, api_key().key),
    ],
)
def test_nothing_is_decided_before_the_go(command: Command) -> None:
    assert told(recovering(), heard(), command) == Decision(RECOVERING)
    assert RECOVERING.row.http_status == 503
    assert RECOVERING.row.retry


def test_time_alone_changes_nothing_before_the_go() -> None:
    state = recovering(
        WorkloadAdmitted(request=request(), key=api_key().key, tenant=TenantId("default"), deployment=DEPLOYMENT)
    )
    late = after(10 * POLICY.node_lease_ms)
    assert decide(state, heard(), POLICY, Tick(), late).events == ()
    apply(state, StoreRebased(above=1, generations=()), epoch=2)
    assert len(decide(state, heard(), POLICY, Tick(), late).events) == 2, "a lost node and an abandoned workload"


def test_heartbeats_are_taken_and_what_runs_is_settled() -> None:
    admitted = WorkloadAdmitted(request=request(), key=api_key().key, tenant=TenantId("default"), deployment=DEPLOYMENT)
    state = recovering(admitted)
    seen = told(state, heard(), reported(ahead(epoch=7, generation=3, port=9_001))).events
    assert [type(event) for event in seen] == [ReplicaChanged]
    ended = told(state, heard(), SettleWorkload(Settlement(workload=request().workload, outcome=None))).events
    assert [type(event) for event in ended] == [WorkloadSettled]


# --- the plan ---


def test_the_plan_tells_what_the_go_leads_to() -> None:
    state = recovering(
        *enrolled_events(OTHER),
        WorkloadAdmitted(request=request(), key=api_key().key, tenant=TenantId("default"), deployment=DEPLOYMENT),
        DeploymentApplied(Deployment(spec=spec(replicas=2), generation=1)),
    )
    observed = heard(attrs.evolve(heartbeat(1, report(assignment=STRANGE)), node=NODE))
    early = recovery_plan(state, observed, POLICY, NOW)
    assert early.waiting == (OTHER,)
    plan = recovery_plan(state, observed, POLICY, after(POLICY.node_lease_ms - 1))
    late = recovery_plan(state, observed, POLICY, after(POLICY.node_lease_ms))
    assert plan == early
    assert early.steps == (
        RecoveryStep(kind=StepKind.START_MISSING, target=ASSIGNMENT, node=NODE),
        RecoveryStep(kind=StepKind.START_MISSING, target=DEPLOYMENT),
        RecoveryStep(kind=StepKind.STOP_ORPHAN, target=STRANGE, node=NODE),
        RecoveryStep(kind=StepKind.EXPIRE_LEASE, target=request().workload),
    )
    unreachable = {step.target for step in late.steps if step.kind is StepKind.MARK_UNREACHABLE}
    assert unreachable == {NODE, OTHER}
    assert late.waiting == ()
    assert late.digest != early.digest


def test_a_stale_go_is_refused() -> None:
    state, observed = recovering(), heard()
    seen = recovery_plan(state, observed, POLICY, NOW).digest
    changed = heard(heartbeat(1, report(assignment=STRANGE)))
    refused = told(state, changed, commands.Rebase(seen)).answer
    assert isinstance(refused, Refusal)
    assert refused.outcome is Outcome.STALE_GENERATION
    nothing = told(state_of(serving_events()), observed, commands.Rebase(seen)).answer
    assert isinstance(nothing, Refusal)


# --- the go ---


def test_the_go_raises_epoch_and_generations_above_what_nodes_hold() -> None:
    state = recovering(*enrolled_events(OTHER))
    observed = heard(ahead(epoch=6, generation=9), attrs.evolve(ahead(epoch=4, node=OTHER), replicas=()))
    assert epoch_floor(state, observed) == 6
    events = go(state, observed)
    assert events == [
        StoreRebased(above=6, generations=(NodeGeneration(NODE, 10), NodeGeneration(OTHER, 1))),
    ]
    apply(state, events[0], epoch=7)
    assert (state.recovery, state.rebased, state.epoch) == (None, 6, 7)
    assert state.nodes[NODE].generation == 10
    assert told(state, observed, reported(ahead(epoch=6, generation=9, sequence=2))).events == ()


def test_replicas_of_a_newer_generation_are_replaced() -> None:
    """A node refuses an assignment that is older than what it has, and would go on with that."""
    state = recovering()
    events = go(state, heard(_newer(4)))
    assert events[1:] == [DeploymentApplied(Deployment(spec=spec(), generation=5))]


def _newer(generation: int) -> Heartbeat:
    return attrs.evolve(heartbeat(1, report(generation=generation)), epoch=2, generation=2)


@pytest.mark.parametrize("refusal", ["content_changed", "rolled_back"])
def test_what_a_node_does_not_follow_after_the_go_is_replaced(refusal: str) -> None:
    state = recovering(*enrolled_events(OTHER))
    refused = RefusedAssignment(assignment=ASSIGNMENT, refusal=refusal)
    said = attrs.evolve(heartbeat(2, report(generation=3)), refused=(refused,))
    assert told(state, heard(), reported(said)).events[1:] == ()
    for event in go(state, heard()):
        apply(state, event, epoch=2)
    newer = DeploymentApplied(Deployment(spec=spec(), generation=4))
    assert newer not in told(state, heard(), reported(attrs.evolve(said, node=OTHER))).events, "not by another's word"
    observed = heard()
    decision = told(state, observed, reported(said))
    assert newer in decision.events
    for event in decision.events:
        apply(state, event, epoch=2)
    absorb(state, observed, POLICY, reported(said), decision, NOW)
    for has in (3, 4, 5):
        liar = attrs.evolve(said, sequence=3, replicas=(report(generation=has),))
        assert not _applied(told(state, observed, reported(liar)).events), "once"
    other = attrs.evolve(said, refused=(attrs.evolve(refused, refusal="too_many"),))
    assert newer not in told(state, heard(), reported(other)).events


def _applied(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, DeploymentApplied)]


def test_a_node_that_comes_back_late_begins_no_recovery() -> None:
    state = recovering(*enrolled_events(OTHER))
    for event in go(state, heard(ahead(epoch=6, generation=9))):
        apply(state, event, epoch=7)
    late = attrs.evolve(heartbeat(1, node=OTHER), epoch=6, generation=20)
    found = told(state, heard(), reported(late)).events
    assert found == (StoreRebased(above=6, generations=(NodeGeneration(OTHER, 21),)),)
    apply(state, found[0], epoch=7)
    assert (state.recovery, state.rebased, state.epoch) == (None, 6, 7)
    newer = attrs.evolve(late, epoch=8, sequence=2)
    assert isinstance(told(state, heard(), reported(newer)).events[0], RecoveryBegan), "not covered by the go"


@settings(max_examples=examples(60))
@given(
    st.dictionaries(
        st.sampled_from([NODE, OTHER, NodeId("node-3")]),
        st.tuples(st.integers(0, 9), st.integers(0, 9)),
        max_size=3,
    )
)
def test_every_heard_node_follows_the_next_document(holds: dict[NodeId, tuple[int, int]]) -> None:
    state = recovering(*enrolled_events(OTHER), *enrolled_events(NodeId("node-3")))
    beats = [attrs.evolve(heartbeat(1, node=node), epoch=e, generation=g) for node, (e, g) in holds.items()]
    observed = heard(*beats)
    above = epoch_floor(state, observed)
    for event in go(state, observed):
        apply(state, event, epoch=above + 1)
    for beat in beats:
        accepted = DesiredState(cluster=ClusterId("cl_1"), node=beat.node, epoch=beat.epoch, generation=beat.generation)
        offered = attrs.evolve(accepted, epoch=state.epoch, generation=state.nodes[beat.node].generation)
        assert check_order(accepted, offered, cluster=ClusterId("cl_1"), node=beat.node) is None
        assert offered.order > accepted.order
