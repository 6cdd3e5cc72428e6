"""Admission: who may come in, and that each refusal is the honest one."""

import attrs
import pytest

from lunanexa_core.admission.admit import admit, authorise
from lunanexa_core.deployment import Deployment
from lunanexa_core.events import (
    AssignmentRemoved,
    DeploymentApplied,
    DeploymentRemoved,
    Event,
    KeyCreated,
    KeyRevoked,
    Liveness,
    LivenessChanged,
    ReplicaChanged,
    WorkloadAdmitted,
)
from lunanexa_core.ids import Alias, AssignmentId, KeyId, NodeId, SessionId
from lunanexa_core.kernel.apply import apply
from lunanexa_core.keys import Role, secret_digest
from lunanexa_core.observed import Declined
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.southbound.heartbeat import IdentityGrade, ReplicaState
from lunanexa_core.workload import Dialect, WorkloadRequest
from tests.core.builders import (
    ALIAS,
    ASSIGNMENT,
    BOOT,
    DEPLOYMENT,
    NODE,
    NOW,
    POLICY,
    after,
    api_key,
    engine,
    heard,
    report,
    request,
    serving_events,
    spec,
    state_of,
)


def outcome_of(events: list[Event], asked: WorkloadRequest, **observed_changes: object) -> Outcome | None:
    observed = heard()
    for name, value in observed_changes.items():
        setattr(observed, name, value)
    answer = admit(state_of(events), observed, POLICY, asked, NOW)
    return answer.outcome if isinstance(answer, Refusal) else None


def test_a_good_request_is_admitted_for_its_key_and_service() -> None:
    answer = admit(state_of(serving_events()), heard(), POLICY, request(), NOW)
    assert answer == WorkloadAdmitted(
        request=request(), key=KeyId("key_1"), tenant=api_key().tenant, deployment=DEPLOYMENT
    )


def test_unknown_revoked_and_expired_keys_are_one_answer() -> None:
    base = serving_events()
    unknown = request(key_digest=secret_digest("other"))
    expired = [KeyCreated(api_key(key=KeyId("key_2"), digest=secret_digest("old"), expires_wall_ms=NOW.wall_ms))]
    answers = {
        outcome_of(base, unknown),
        outcome_of([*base, KeyRevoked(KeyId("key_1"))], request()),
        outcome_of([*base, *expired], request(key_digest=secret_digest("old"))),
    }
    assert answers == {Outcome.INVALID_API_KEY}


def test_a_key_without_the_role_is_403() -> None:
    operator = api_key(key=KeyId("key_2"), digest=secret_digest("op"), roles=frozenset({Role.OPERATOR}))
    events = [*serving_events(), KeyCreated(operator)]
    assert outcome_of(events, request(key_digest=secret_digest("op"))) is Outcome.PERMISSION_DENIED
    assert authorise(state_of(events), secret_digest("op"), Role.OPERATOR, NOW) == operator


def test_an_alias_that_the_key_may_not_use_does_not_exist_for_it() -> None:
    narrow = api_key(key=KeyId("key_2"), digest=secret_digest("n"), aliases=frozenset({Alias("other")}))
    events = [*serving_events(), KeyCreated(narrow)]
    assert outcome_of(events, request(key_digest=secret_digest("n"))) is Outcome.MODEL_NOT_FOUND
    assert outcome_of(serving_events(), request(alias=Alias("nope"))) is Outcome.MODEL_NOT_FOUND


def test_a_dialect_that_the_engine_does_not_speak_is_400() -> None:
    events = serving_events()
    llama = engine(driver="llama_cpp", model_path="/m.gguf")
    changed = [*events, DeploymentApplied(Deployment(spec=spec(engine=llama), generation=1))]
    spoken = {dialect: outcome_of(changed, request(dialect=dialect)) for dialect in Dialect}
    assert spoken[Dialect.CHAT] is None
    refused = {dialect for dialect, outcome in spoken.items() if outcome is Outcome.UNSUPPORTED_ENDPOINT}
    assert refused == {dialect for dialect in Dialect if spoken[dialect] is not None}


def test_draining_and_a_lapsed_session_are_503() -> None:
    assert outcome_of(serving_events(), request(), draining=True) is Outcome.DRAINING
    assert outcome_of(serving_events(), request(session=SessionId("ses_9"))) is Outcome.STARTING
    lapsed = admit(state_of(serving_events()), heard(), POLICY, request(), after(POLICY.session_lease_ms))
    assert isinstance(lapsed, Refusal)
    assert lapsed.outcome is Outcome.STARTING


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (ReplicaChanged(NODE, report(state=ReplicaState.STARTING)), Outcome.STARTING),
        (ReplicaChanged(NODE, report(state=ReplicaState.BACKOFF)), Outcome.STARTING),
        (ReplicaChanged(NODE, report(state=ReplicaState.FAILED)), Outcome.NO_CAPACITY),
        (ReplicaChanged(NODE, report(identity=IdentityGrade.DECLARED)), Outcome.STARTING),
        (ReplicaChanged(NODE, report(generation=0)), Outcome.STARTING),
        (ReplicaChanged(NODE, report(port=None)), Outcome.STARTING),
        (AssignmentRemoved(ASSIGNMENT), Outcome.NO_PLACEMENT),
    ],
)
def test_without_a_routable_replica_nothing_is_taken_in(change: Event, outcome: Outcome) -> None:
    assert outcome_of([*serving_events(), change], request()) is outcome


def test_what_no_node_s_owner_lets_run_has_no_place() -> None:
    stopped = [*serving_events(), ReplicaChanged(NODE, report(state=ReplicaState.STOPPING))]
    runs = state_of(stopped).deployments[DEPLOYMENT].runs
    declined = Declined(node=NODE, boot=BOOT, deployment=DEPLOYMENT, runs=runs, refusal="policy_program")
    assert outcome_of(stopped, request(), declined=frozenset((declined,))) is Outcome.NO_PLACEMENT
    of_another = attrs.evolve(declined, node=NodeId("node-2"))
    assert outcome_of(stopped, request(), declined=frozenset((of_another,))) is Outcome.STARTING
    full_once = attrs.evolve(declined, beside=frozenset({(AssignmentId("asg_gone"), 1)}))
    assert outcome_of(stopped, request(), declined=frozenset((full_once,))) is Outcome.STARTING


def test_a_node_that_was_not_heard_is_not_granted_anything() -> None:
    assert outcome_of(serving_events(), request(), nodes={}) is Outcome.STARTING
    silent = admit(state_of(serving_events()), heard(), POLICY, request(), after(POLICY.node_lease_ms - 1))
    assert isinstance(silent, WorkloadAdmitted)
    observed = heard()
    observed.sessions[request().session] = NOW.mono_ms + 10 * POLICY.node_lease_ms
    lost = admit(state_of(serving_events()), observed, POLICY, request(), after(POLICY.node_lease_ms))
    assert isinstance(lost, Refusal)


def test_a_declared_identity_serves_only_where_the_deployment_says_so() -> None:
    declared = ReplicaChanged(NODE, report(identity=IdentityGrade.DECLARED))
    allowed = DeploymentApplied(Deployment(spec=spec(allow_declared=True), generation=1))
    assert outcome_of([*serving_events(), declared, allowed], request()) is None


def test_concurrency_of_a_key_and_room_in_the_queue_are_429() -> None:
    one = api_key(key=KeyId("key_2"), digest=secret_digest("one"), concurrency=1)
    asked = request(1, key_digest=secret_digest("one"))
    state = state_of([*serving_events(), KeyCreated(one)])
    apply(state, WorkloadAdmitted(request=asked, key=one.key, tenant=one.tenant, deployment=DEPLOYMENT), epoch=1)
    second = admit(state, heard(), POLICY, attrs.evolve(request(2), key_digest=secret_digest("one")), NOW)
    assert isinstance(second, Refusal)
    assert second.outcome is Outcome.RATE_LIMITED
    # Two slots and a queue of two: the fifth is refused, and the fourth was not.
    for number in range(2, 5):
        answer = admit(state, heard(), POLICY, request(number), NOW)
        assert isinstance(answer, WorkloadAdmitted), number
        apply(state, answer, epoch=1)
    fifth = admit(state, heard(), POLICY, request(9), NOW)
    assert isinstance(fifth, Refusal)
    assert fifth.outcome is Outcome.QUEUE_FULL
    assert fifth.wait_ms


def test_a_workload_id_is_taken_once() -> None:
    state = state_of(serving_events())
    first = admit(state, heard(), POLICY, request(1), NOW)
    assert isinstance(first, WorkloadAdmitted)
    apply(state, first, epoch=1)
    again = admit(state, heard(), POLICY, request(1), NOW)
    assert isinstance(again, Refusal)
    assert again.outcome is Outcome.WORKLOAD_ACTIVE


def test_a_removed_deployment_is_unknown_and_a_lost_node_stays_listed_as_such() -> None:
    assert outcome_of([*serving_events(), DeploymentRemoved(DEPLOYMENT)], request()) is Outcome.MODEL_NOT_FOUND
    state = state_of([*serving_events(), LivenessChanged(NODE, Liveness.LOST)])
    assert state.nodes[NODE].liveness is Liveness.LOST
    assert ALIAS in state.deployment_of_alias
