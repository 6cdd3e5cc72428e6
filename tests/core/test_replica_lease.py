"""The lease of its node in a replica's life: what is not started without one, and what does not outlive it."""

import attrs
import pytest

from lunanexa_core.ids import StartId
from lunanexa_core.lifecycle.observations import (
    Action,
    CutOff,
    Exited,
    GroupGone,
    LeaseAwaited,
    LeaseGranted,
    Prepared,
    StopAsked,
)
from lunanexa_core.lifecycle.record import Ending, rules_for
from lunanexa_core.lifecycle.replica import next_wake_ms, recover
from lunanexa_core.southbound.heartbeat import ExitReason, ReplicaState
from tests.core.test_replica_machine import ASSIGNMENT, RULES, Life

TERMINATED = ExitReason(kind="exited", code=0, last_lines=("bye",))


def waiting() -> Life:
    life = Life()
    assert life.wake() == (Action.PREPARE,)
    assert life.see(LeaseAwaited()) == ()
    return life


def test_a_start_waits_for_the_lease_without_a_deadline() -> None:
    life = waiting()
    assert life.is_in(ReplicaState.AWAITING_LEASE)
    assert next_wake_ms(life.record, RULES) is None
    assert life.see(LeaseGranted()) == (Action.PREPARE,)
    assert life.is_in(ReplicaState.STARTING)


def test_a_start_whose_lease_lapsed_before_its_launch_never_was() -> None:
    life = Life().launch()
    assert life.record.launched
    assert life.see(LeaseAwaited()) == ()
    assert (life.record.state, life.record.launched) == (ReplicaState.AWAITING_LEASE, False)
    assert life.record.restarts == 0
    assert life.see(LeaseGranted()) == (Action.PREPARE,)
    life.see(Prepared(start=StartId("start_2"), host="127.0.0.1", port=40_002))
    assert life.start == "start_2"


def test_what_waits_for_the_lease_is_absent_at_once_when_it_is_wanted_no_more() -> None:
    life = waiting()
    life.see(StopAsked())
    assert life.is_in(ReplicaState.ABSENT)


def test_who_is_cut_off_for_too_long_ends_by_itself_and_starts_when_it_may() -> None:
    life = Life().ready()
    assert life.see(CutOff()) == (Action.TERMINATE,)
    assert life.record.deadline_ms == life.now_ms + RULES.stop_timeout_ms
    assert life.see(Exited(life.start, TERMINATED)) == ()
    assert life.see(GroupGone(life.start)) == (Action.FORGET,)
    assert life.is_in(ReplicaState.AWAITING_LEASE)
    assert life.record.exit == attrs.evolve(TERMINATED, kind="cut_off")
    assert life.record.restarts == 0
    assert life.see(LeaseGranted()) == (Action.PREPARE,)


def test_it_is_killed_when_it_does_not_go() -> None:
    life = Life().ready()
    life.see(CutOff())
    assert life.wake() == (Action.KILL,)


def test_a_drain_is_cut_short_and_stays_an_end() -> None:
    life = Life().ready()
    assert life.see(StopAsked()) == ()
    assert life.see(CutOff()) == (Action.TERMINATE,)
    assert life.record.ending is Ending.ABSENT
    life.see(GroupGone(life.start))
    assert life.is_in(ReplicaState.ABSENT)


@pytest.mark.parametrize("alive", [True, False])
def test_a_new_agent_goes_on_where_it_was(alive: bool) -> None:
    life = Life().ready()
    life.see(CutOff())
    step = recover(life.record.durable(), alive=alive, recorded=True, now_ms=7, rules=RULES, jitter_per_mille=0)
    assert step.record.state is (ReplicaState.STOPPING if alive else ReplicaState.AWAITING_LEASE)


def test_a_new_agent_asks_anew() -> None:
    record = waiting().record.durable()
    step = recover(record, alive=False, recorded=False, now_ms=7, rules=RULES, jitter_per_mille=0)
    assert (step.record.state, step.record.deadline_ms) == (ReplicaState.BACKOFF, 7)


def test_the_keep_is_the_assignments_and_none_of_an_adopted_engine() -> None:
    kept = attrs.evolve(ASSIGNMENT, cut_off_keep_ms=5)
    assert rules_for(kept).cut_off_keep_ms == 5
    url = attrs.evolve(kept.engine, binary=None, url="http://127.0.0.1:1")
    assert rules_for(attrs.evolve(kept, engine=url)).cut_off_keep_ms is None
