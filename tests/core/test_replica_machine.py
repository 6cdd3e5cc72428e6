"""The replica machine: its paths one by one, and its rules under arbitrary histories."""

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.driver import Health
from lunanexa_core.ids import AssignmentId, DeploymentId, StartId
from lunanexa_core.lifecycle.backoff import CAP_MS, backoff_ms
from lunanexa_core.lifecycle.observations import (
    Action,
    CutOff,
    Exited,
    GroupGone,
    LaunchFailed,
    LeaseAwaited,
    LeaseGranted,
    MemorySeen,
    NotPrepared,
    Observation,
    Prepared,
    Probed,
    Refused,
    Step,
    StopAsked,
    Tick,
)
from lunanexa_core.lifecycle.record import Ending, ReplicaRecord, ReplicaRules, rules_for
from lunanexa_core.lifecycle.replica import new_replica, next_wake_ms, recover, step
from lunanexa_core.southbound.documents import DesiredAssignment
from lunanexa_core.southbound.heartbeat import EngineReadings, ExitReason, IdentityGrade, ReplicaState
from tests.examples import examples

RULES = ReplicaRules(
    adopted=False, start_timeout_ms=10_000, stop_timeout_ms=4_000, second_terminate=False, restart_budget=2
)
ADOPTED = attrs.evolve(RULES, adopted=True)
ASSIGNMENT = DesiredAssignment(
    assignment=AssignmentId("as_1"),
    generation=1,
    deployment=DeploymentId("de_1"),
    engine=EngineSpec(driver="reference", served_name="tiny", binary="/bin/engine"),
)
CRASH = ExitReason(kind="exited", code=0)
S1 = StartId("start_1")
IDLE = EngineReadings(running=0, waiting=0)


class Life:
    """A replica with the time and the rules it lives by."""

    def __init__(self, rules: ReplicaRules = RULES) -> None:
        self.rules = rules
        self.now_ms = 1_000
        self.record = new_replica(ASSIGNMENT, self.now_ms)
        self.starts = 0

    def see(self, observation: Observation, after_ms: int = 0) -> tuple[Action, ...]:
        self.now_ms += after_ms
        taken = step(self.record, observation, self.now_ms, self.rules, 500)
        self.record = taken.record
        return taken.actions

    def wake(self) -> tuple[Action, ...]:
        """Time passes until the machine's next deadline."""
        due_ms = next_wake_ms(self.record, self.rules)
        assert due_ms is not None, self.record.state
        return self.see(Tick(), max(0, due_ms - self.now_ms))

    def is_in(self, state: ReplicaState) -> bool:
        return self.record.state is state

    @property
    def start(self) -> StartId:
        assert self.record.start is not None
        return self.record.start

    def launch(self) -> "Life":
        assert self.wake() == (Action.PREPARE,)
        self.starts += 1
        actions = self.see(Prepared(start=StartId(f"start_{self.starts}"), host="127.0.0.1", port=40_000 + self.starts))
        assert actions == (() if self.rules.adopted else (Action.SPAWN,))
        return self

    def ready(self, grade: IdentityGrade = IdentityGrade.PROVEN) -> "Life":
        self.launch()
        assert self.see(Probed(start=self.start, health=Health.READY, grade=grade), 50) == ()
        assert self.record.state is ReplicaState.READY
        return self

    def crash(self) -> tuple[Action, ...]:
        assert self.see(Exited(self.start, CRASH)) == (Action.KILL,)
        return self.see(GroupGone(self.start))


def test_a_replica_is_ready_by_health_and_identity_together() -> None:
    life = Life().launch()
    assert life.is_in(ReplicaState.STARTING)
    life.see(Probed(start=life.start, health=None))
    life.see(Probed(start=life.start, health=Health.LOADING, grade=IdentityGrade.PROVEN))
    life.see(Probed(start=life.start, health=Health.READY, grade=IdentityGrade.NONE))
    assert life.is_in(ReplicaState.STARTING)
    life.see(Probed(start=life.start, health=Health.READY, grade=IdentityGrade.BOUND))
    assert (life.record.state, life.record.grade) == (ReplicaState.READY, IdentityGrade.BOUND)


def test_exit_zero_that_nobody_asked_for_is_a_crash_with_backoff() -> None:
    life = Life().ready()
    assert life.see(Exited(life.start, CRASH)) == (Action.KILL,)
    assert life.is_in(ReplicaState.STOPPING)
    assert life.see(GroupGone(life.start)) == (Action.FORGET,)
    assert (life.record.state, life.record.restarts, life.record.exit) == (ReplicaState.BACKOFF, 1, CRASH)
    assert life.record.deadline_ms == life.now_ms + backoff_ms(1, 500)
    life.ready()
    assert life.start == "start_2"


def test_the_budget_ends_in_failed_and_a_long_run_earns_a_fresh_one() -> None:
    life = Life()
    life.ready().crash()
    life.ready().crash()
    life.ready()
    assert life.wake() == ()  # ten minutes have passed
    assert life.record.restarts == 0
    for _ in range(2):
        life.crash()
        life.ready()
    assert life.crash() == (Action.FORGET,)
    assert (life.record.state, life.record.restarts, life.record.exit) == (ReplicaState.FAILED, 3, CRASH)
    assert next_wake_ms(life.record, RULES) is None
    assert life.see(StopAsked()) == (Action.FORGET,)
    assert life.is_in(ReplicaState.ABSENT)


def test_a_start_that_never_becomes_ready_is_killed_at_its_deadline() -> None:
    life = Life().launch()
    assert life.wake() == (Action.KILL,)
    life.see(Exited(life.start, ExitReason(kind="signalled", signal=9, last_lines=("loading",))))
    life.see(GroupGone(life.start))
    assert life.is_in(ReplicaState.BACKOFF)
    assert life.record.exit == ExitReason(kind="start_timeout", signal=9, last_lines=("loading",))


def test_another_program_on_the_port_ends_this_start_at_once() -> None:
    life = Life().launch()
    assert life.see(Probed(start=life.start, health=Health.READY, wrong=True)) == (Action.KILL,)
    life.see(GroupGone(life.start))
    assert life.record.exit == ExitReason(kind="wrong_identity")


def test_an_unhealthy_engine_is_offered_nothing_after_two_probes_and_killed_in_time() -> None:
    life = Life().ready()
    ill = Probed(start=life.start, health=Health.LOADING, grade=IdentityGrade.PROVEN)
    life.see(ill, 1_000)
    assert life.is_in(ReplicaState.READY)
    life.see(ill, 1_000)
    assert life.is_in(ReplicaState.STARTING)
    began_ms = life.now_ms - 1_000
    assert life.wake() == (Action.KILL,)
    assert life.now_ms == began_ms + RULES.unhealthy_ms
    life.see(GroupGone(life.start))
    assert life.record.exit == ExitReason(kind="unhealthy")


def test_an_engine_that_recovers_is_ready_again_without_a_restart() -> None:
    life = Life().ready()
    for _ in range(2):
        life.see(Probed(start=life.start, health=None), 1_000)
    life.see(Probed(start=life.start, health=Health.READY, grade=IdentityGrade.PROVEN), 1_000)
    assert (life.record.state, life.record.restarts) == (ReplicaState.READY, 0)


def test_stop_drains_then_terminates_then_kills_and_ends_with_the_group() -> None:
    life = Life().ready()
    assert life.see(StopAsked()) == ()
    assert life.is_in(ReplicaState.DRAINING)
    busy = Probed(start=life.start, health=Health.READY, readings=EngineReadings(running=1, waiting=0))
    assert life.see(busy, 10_000) == ()
    assert life.see(Probed(start=life.start, health=Health.READY, readings=IDLE), 1) == (Action.TERMINATE,)
    assert life.see(Tick(), RULES.stop_timeout_ms) == (Action.KILL,)
    assert life.see(Tick(), RULES.kill_repeat_ms) == (Action.KILL,)
    life.see(Exited(life.start, ExitReason(kind="signalled", signal=9)))
    assert life.is_in(ReplicaState.STOPPING)
    assert life.see(GroupGone(life.start)) == (Action.FORGET,)
    assert life.is_in(ReplicaState.ABSENT)


def test_a_drain_waits_for_grants_on_their_way_and_not_for_ever() -> None:
    life = Life().ready()
    life.see(StopAsked())
    assert life.see(Probed(start=life.start, health=Health.READY, readings=IDLE), 1) == ()
    assert life.see(Probed(start=life.start, health=Health.READY, readings=EngineReadings())) == ()
    assert life.wake() == (Action.TERMINATE,)


def test_a_second_stop_may_only_shorten_a_drain() -> None:
    life = Life().ready()
    life.see(StopAsked(drain_ms=900))
    life.see(StopAsked(drain_ms=400), 100)
    assert life.record.deadline_ms == life.now_ms + 400
    life.see(StopAsked())
    assert life.record.deadline_ms == life.now_ms + 400
    assert life.wake() == (Action.TERMINATE,)


def test_an_engine_that_clings_gets_a_second_terminate_before_the_kill() -> None:
    life = Life(attrs.evolve(RULES, second_terminate=True)).launch()
    began_ms = life.now_ms
    assert life.see(StopAsked()) == (Action.TERMINATE,)
    assert life.wake() == (Action.TERMINATE,)
    assert life.wake() == (Action.KILL,)
    assert life.now_ms == began_ms + RULES.stop_timeout_ms


@pytest.mark.parametrize("state", ["starting", "ready", "draining", "stopping"])
def test_hurry_kills_in_every_state(state: str) -> None:
    life = Life()
    life = life.launch() if state == "starting" else life.ready()
    if state in ("draining", "stopping"):
        life.see(StopAsked())
    if state == "stopping":
        life.wake()
    assert life.record.state.value == state
    assert life.see(StopAsked(hurry=True)) == (Action.KILL,)
    life.see(GroupGone(life.start))
    assert life.is_in(ReplicaState.ABSENT)


def test_a_stop_during_the_clean_up_of_a_crash_makes_it_the_end() -> None:
    life = Life().ready()
    life.see(Exited(life.start, CRASH))
    assert life.see(StopAsked()) == ()
    life.see(GroupGone(life.start))
    assert life.is_in(ReplicaState.ABSENT)


def test_a_start_that_could_not_be_prepared_costs_nothing() -> None:
    life = Life()
    assert life.wake() == (Action.PREPARE,)
    life.see(NotPrepared())
    assert (life.record.state, life.record.restarts) == (ReplicaState.BACKOFF, 0)
    life.launch()


def test_a_refused_specification_fails_with_its_reason_and_is_not_tried_again() -> None:
    life = Life()
    assert life.wake() == (Action.PREPARE,)
    life.see(Refused(S1, "no such driver"))
    assert life.start == S1
    assert life.is_in(ReplicaState.FAILED)
    assert life.record.exit == ExitReason(kind="refused", last_lines=("no such driver",))
    assert not life.record.launched


def test_a_failed_spawn_counts_and_says_why() -> None:
    life = Life().launch()
    assert life.see(LaunchFailed(life.start, "no such file")) == (Action.FORGET,)
    assert (life.record.state, life.record.restarts) == (ReplicaState.BACKOFF, 1)
    assert life.record.exit == ExitReason(kind="spawn_failed", last_lines=("no such file",))


def test_an_adopted_engine_is_never_started_stopped_or_given_up() -> None:
    life = Life(ADOPTED).ready(IdentityGrade.DECLARED)
    for _ in range(10):
        for _ in range(2):
            life.see(Probed(start=life.start, health=None), 1_000)
        assert life.wake() == (Action.FORGET,)
        assert life.is_in(ReplicaState.BACKOFF)
        life.ready(IdentityGrade.DECLARED)
    assert life.see(StopAsked()) == (Action.FORGET,)
    assert life.is_in(ReplicaState.ABSENT)


def test_what_belongs_to_an_earlier_start_changes_nothing() -> None:
    life = Life().ready()
    life.crash()
    life.ready()
    before = life.record
    for late in (
        Exited(S1, CRASH),
        GroupGone(S1),
        LaunchFailed(S1, "late"),
        Probed(start=S1, health=None, wrong=True),
        Prepared(start=S1, host="127.0.0.1", port=1),
        NotPrepared(),
        Refused(S1, "late"),
    ):
        assert life.see(late) == ()
        assert life.record == before


# --- recovery ------------------------------------------------------------------------------------------


def recovered(record: ReplicaRecord, *, alive: bool, recorded: bool = True, rules: ReplicaRules = RULES) -> Step:
    return recover(record, alive=alive, recorded=recorded, now_ms=77, rules=rules, jitter_per_mille=0)


def test_a_proven_process_is_kept_and_must_show_its_health_anew() -> None:
    taken = recovered(Life().ready().record, alive=True)
    assert taken == Step(taken.record)
    assert (taken.record.state, taken.record.start) == (ReplicaState.STARTING, S1)
    assert taken.record.deadline_ms == 77 + RULES.start_timeout_ms


def test_what_served_the_agent_before_is_drained_though_nobody_looked_yet() -> None:
    life = Life().ready()
    life.record = recovered(life.record, alive=True).record
    assert life.see(StopAsked()) == ()
    assert life.is_in(ReplicaState.DRAINING)
    assert life.see(Probed(start=S1, health=Health.READY, readings=IDLE), RULES.drain_quiet_ms) == (Action.TERMINATE,)
    life = Life().launch()
    life.record = recovered(life.record, alive=True).record
    assert life.see(StopAsked()) == (Action.TERMINATE,), "what did not serve yet has no requests"


def test_a_process_that_ended_unobserved_is_a_crash() -> None:
    life = Life().ready()
    life.crash()
    life.ready()
    taken = recovered(life.record, alive=False)
    assert (taken.record.state, taken.record.restarts) == (ReplicaState.BACKOFF, 2)
    assert taken.record.exit == ExitReason(kind="unobserved")
    assert not taken.record.launched


def test_a_start_without_a_process_record_never_was_and_costs_nothing() -> None:
    taken = recovered(Life().launch().record, alive=False, recorded=False)
    assert (taken.record.state, taken.record.restarts, taken.record.deadline_ms) == (ReplicaState.BACKOFF, 0, 77)


def test_a_stop_goes_on_where_it_was() -> None:
    life = Life().ready()
    life.see(StopAsked())
    assert recovered(life.record, alive=True).actions == (Action.TERMINATE,)
    assert recovered(life.record, alive=False).record.state is ReplicaState.ABSENT
    life.wake()
    assert recovered(life.record, alive=True).actions == (Action.TERMINATE,)


def test_what_had_ended_stays_ended() -> None:
    failed = attrs.evolve(Life().record, state=ReplicaState.FAILED)
    assert recovered(failed, alive=False).record.state is ReplicaState.FAILED
    absent = attrs.evolve(Life().record, state=ReplicaState.ABSENT)
    assert recovered(absent, alive=False).actions == (Action.FORGET,)


def test_an_adopted_engine_keeps_its_start_over_the_death_of_the_agent() -> None:
    taken = recovered(Life(ADOPTED).ready(IdentityGrade.BOUND).record, alive=False, rules=ADOPTED)
    assert (taken.record.state, taken.record.start) == (ReplicaState.STARTING, S1)


def test_rules_come_from_specification_and_driver() -> None:
    llama = attrs.evolve(ASSIGNMENT, engine=attrs.evolve(ASSIGNMENT.engine, driver="llama_cpp", url="http://h:1"))
    assert (rules_for(llama).second_terminate, rules_for(llama).adopted) == (True, True)
    unknown = attrs.evolve(ASSIGNMENT, engine=attrs.evolve(ASSIGNMENT.engine, driver="none", start_timeout_ms=0))
    assert (rules_for(unknown).second_terminate, rules_for(unknown).start_timeout_ms) == (False, 1)


# --- under arbitrary histories --------------------------------------------------------------------------


@given(failures=st.integers(0, 10_000), jitter=st.integers(0, 999))
def test_backoff_grows_to_its_cap_and_never_vanishes(failures: int, jitter: int) -> None:
    delay_ms = backoff_ms(failures, jitter)
    assert 0 < delay_ms <= CAP_MS
    assert delay_ms <= backoff_ms(failures + 1, 999)


TERMINAL = (ReplicaState.AWAITING_LEASE, ReplicaState.READY, ReplicaState.FAILED, ReplicaState.ABSENT)


class ReplicaHistory(RuleBasedStateMachine):
    """A world in which anything may happen to one replica, the agent's death included."""

    @initialize(budget=st.integers(0, 3), adopted=st.booleans(), second=st.booleans(), frugal=st.booleans())
    def begin(self, budget: int, adopted: bool, second: bool, frugal: bool) -> None:
        self.limits = attrs.evolve(RULES, restart_budget=budget, adopted=adopted, second_terminate=second)
        if not adopted and not frugal:
            self.limits = attrs.evolve(self.limits, memory_mib=50, memory_limit_mib=50)
        self.available_mib: int | None = None
        self.now_ms = 0
        self.live: set[StartId] = set()
        self.recorded: set[StartId] = set()
        self.numbers = 0
        self.preparing = False
        self.spawns_in_a_row = 0
        self.stop_asked = False
        self.leased = True
        self.record = new_replica(ASSIGNMENT, 0)

    def take(self, taken: Step) -> None:
        if taken.record.restarts == 0 and self.record.restarts:
            self.spawns_in_a_row = 0
        self.record = taken.record
        for action in taken.actions:
            match action:
                case Action.PREPARE:
                    assert not self.live, "a start is prepared while an earlier one lives"
                    self.preparing = True
                case Action.SPAWN:
                    assert not self.live, "two live starts of one assignment"
                    assert not self.limits.adopted
                    assert not self.stop_asked
                    needed_mib = self.limits.memory_mib
                    assert needed_mib is None or self.available_mib is None or self.available_mib >= needed_mib
                    assert self.record.start is not None
                    if not self.leased:
                        self.see(LeaseAwaited())
                        continue
                    self.live.add(self.record.start)
                    self.recorded.add(self.record.start)
                    self.spawns_in_a_row += 1
                case Action.TERMINATE | Action.KILL:
                    assert self.live, "a signal to nothing"
                case Action.FORGET:
                    assert not self.live, "a record forgotten while its process lives"

    def see(self, observation: Observation) -> None:
        self.take(step(self.record, observation, self.now_ms, self.limits, 300))

    @rule(passed_ms=st.integers(0, 700_000))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.see(Tick())

    @precondition(lambda self: next_wake_ms(self.record, self.limits) is not None)
    @rule()
    def deadline_comes(self) -> None:
        due_ms = next_wake_ms(self.record, self.limits)
        assert due_ms is not None
        self.now_ms = max(self.now_ms, due_ms)
        before = self.record
        self.see(Tick())
        assert self.record != before, "a deadline passed and nothing came of it"

    @precondition(lambda self: self.preparing)
    @rule(how=st.sampled_from(["works", "works", "fails", "refused"]), available=st.none() | st.integers(0, 99))
    def preparation_ends(self, how: str, available: int | None) -> None:
        self.preparing = False
        if not self.leased and not self.limits.adopted:
            self.see(LeaseAwaited())
            return
        if how == "fails":
            self.see(NotPrepared())
            return
        self.numbers += 1
        if how == "refused":
            self.see(Refused(StartId(f"start_{self.numbers}"), "no"))
            return
        self.available_mib = available
        memory = MemorySeen(available_mib=available, total_mib=99)
        self.see(Prepared(start=StartId(f"start_{self.numbers}"), host="127.0.0.1", port=40_000, memory=memory))

    @rule(available=st.none() | st.integers(0, 99))
    def memory_is_seen(self, available: int | None) -> None:
        self.available_mib = self.available_mib if available is None else available
        self.see(MemorySeen(available_mib=available, total_mib=99))

    @precondition(lambda self: self.live)
    @rule(how=st.sampled_from(["exit", "fail"]))
    def process_ends(self, how: str) -> None:
        start = self.live.pop()
        if how == "fail":
            self.see(LaunchFailed(start, "no"))
            return
        self.live.add(start)
        self.see(Exited(start, CRASH))
        self.live.discard(start)
        self.see(GroupGone(start))

    @rule(
        number=st.integers(0, 3),
        health=st.sampled_from([None, *Health]),
        grade=st.sampled_from(list(IdentityGrade)),
        wrong=st.booleans(),
        running=st.sampled_from([None, 0, 1]),
        resident=st.sampled_from([None, 50, 51]),
    )
    def probe(
        self,
        number: int,
        health: Health | None,
        grade: IdentityGrade,
        wrong: bool,
        running: int | None,
        resident: int | None,
    ) -> None:
        start = StartId(f"start_{max(1, self.numbers - number)}")
        readings = EngineReadings(running=running, waiting=running)
        self.see(Probed(start=start, health=health, grade=grade, wrong=wrong, readings=readings, resident_mib=resident))

    @rule(number=st.integers(1, 3))
    def something_late_arrives(self, number: int) -> None:
        late = StartId(f"start_{self.numbers - number}")
        before = self.record
        for observation in (Exited(late, CRASH), GroupGone(late), LaunchFailed(late, "late")):
            self.see(observation)
        assert self.record == before

    @rule()
    def lease_turns(self) -> None:
        self.leased = not self.leased
        if self.leased:
            self.see(LeaseGranted())

    @precondition(lambda self: not self.leased)
    @rule()
    def is_cut_off(self) -> None:
        restarts = self.record.restarts
        self.see(CutOff())
        assert self.record.restarts == restarts, "silence is no crash"
        assert not self.live or self.record.state is ReplicaState.STOPPING

    @rule(hurry=st.booleans())
    def stop(self, hurry: bool) -> None:
        self.stop_asked = True
        self.see(StopAsked(hurry))

    @rule(dies=st.booleans())
    def agent_restarts(self, dies: bool) -> None:
        if dies:
            self.live.clear()
        self.preparing = False
        self.now_ms = 5
        alive = self.record.start in self.live
        recorded = self.record.start in self.recorded
        self.take(
            recover(
                self.record.durable(), alive=alive, recorded=recorded, now_ms=5, rules=self.limits, jitter_per_mille=1
            )
        )

    @invariant()
    def each_state_has_a_deadline_or_is_an_end(self) -> None:
        assert (self.record.deadline_ms is None) == (self.record.state in TERMINAL)

    @invariant()
    def what_lives_is_known(self) -> None:
        assert not self.live or (self.record.launched and self.record.start in self.live)

    @invariant()
    def the_budget_is_kept(self) -> None:
        assert self.record.restarts <= self.limits.restart_budget + 1 or self.limits.adopted
        if self.record.state is ReplicaState.FAILED and self.limits.adopted:
            assert self.record.exit is not None
            assert self.record.exit.kind == "refused"

    @invariant()
    def ready_has_an_identity(self) -> None:
        assert self.record.state is not ReplicaState.READY or self.record.grade is not IdentityGrade.NONE

    @invariant()
    def stopped_stays_stopped(self) -> None:
        if self.stop_asked:
            assert self.record.ending is Ending.ABSENT
            assert self.record.state in (ReplicaState.ABSENT, ReplicaState.STOPPING, ReplicaState.DRAINING)

    def teardown(self) -> None:
        """Whatever happened, a stop and enough time end it."""
        if not hasattr(self, "record"):
            return
        self.see(StopAsked())
        for _ in range(10):
            due_ms = next_wake_ms(self.record, self.limits)
            if due_ms is None:
                break
            self.now_ms = max(self.now_ms, due_ms)
            self.see(Tick())
            if self.record.kills and self.live:
                self.see(GroupGone(self.live.pop()))
        assert self.record.state is ReplicaState.ABSENT


ReplicaHistory.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)
test_history = ReplicaHistory.TestCase
