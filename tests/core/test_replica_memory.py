"""Memory in a replica's life: what a start waits for, and what an engine may hold."""

import attrs
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.drivers.driver import Health
from lunanexa_core.ids import StartId
from lunanexa_core.lifecycle.observations import (
    Action,
    Exited,
    GroupGone,
    MemorySeen,
    Prepared,
    Probed,
    StopAsked,
    Tick,
)
from lunanexa_core.lifecycle.record import Ending, rules_for
from lunanexa_core.lifecycle.replica import recover
from lunanexa_core.southbound.heartbeat import EngineReadings, ExitReason, IdentityGrade, ReplicaState
from tests.core.test_replica_machine import ASSIGNMENT, CRASH, RULES, Life

NEEDED = attrs.evolve(RULES, memory_mib=800, memory_wait_ms=10_000)
LIMITED = attrs.evolve(RULES, memory_limit_mib=500)
TOTAL_MIB = 1_000


def prepared(life: Life, available_mib: int | None, total_mib: int | None = TOTAL_MIB) -> tuple[Action, ...]:
    assert life.wake() == (Action.PREPARE,)
    life.starts += 1
    memory = MemorySeen(available_mib=available_mib, total_mib=total_mib)
    return life.see(Prepared(start=StartId(f"start_{life.starts}"), host="127.0.0.1", port=40_000, memory=memory))


def seen(available_mib: int | None) -> MemorySeen:
    return MemorySeen(available_mib=available_mib, total_mib=TOTAL_MIB)


def test_a_start_with_room_does_not_wait() -> None:
    life = Life(NEEDED)
    assert prepared(life, 800) == (Action.SPAWN,)
    assert (life.record.state, life.record.launched) == (ReplicaState.STARTING, True)


def test_a_start_waits_for_room_and_then_has_its_whole_time() -> None:
    life = Life(NEEDED)
    assert prepared(life, 799) == ()
    assert (life.record.state, life.record.launched) == (ReplicaState.AWAITING_MEMORY, False)
    assert life.see(seen(500), 4_000) == ()
    assert life.see(seen(900), 4_000) == (Action.SPAWN,)
    assert life.record.deadline_ms == life.now_ms + NEEDED.start_timeout_ms


def test_a_start_without_room_is_given_up_with_both_figures_until_the_budget_is_spent() -> None:
    life = Life(NEEDED)
    for restarts in range(1, NEEDED.restart_budget + 2):
        assert prepared(life, 300) == ()
        life.see(seen(310 + restarts), 1_000)
        began_ms = life.now_ms - 1_000
        assert life.wake() == (Action.FORGET,)
        assert life.now_ms == began_ms + NEEDED.memory_wait_ms
        detail = f"needs 800 MiB, {310 + restarts} MiB were available after 10 s"
        assert (life.record.restarts, life.record.exit) == (restarts, ExitReason(kind="no_memory", detail=detail))
    assert life.is_in(ReplicaState.FAILED)


def test_what_the_machine_has_not_at_all_is_not_waited_for() -> None:
    life = Life(NEEDED)
    assert prepared(life, 300, total_mib=799) == ()
    assert life.is_in(ReplicaState.FAILED)
    assert life.start == "start_1"
    detail = "needs 800 MiB, this machine has 799 MiB in all"
    assert life.record.exit == ExitReason(kind="no_memory", detail=detail)


def test_unknown_memory_holds_nothing_up_and_overwrites_nothing_known() -> None:
    assert prepared(Life(NEEDED), None) == (Action.SPAWN,)
    life = Life(NEEDED)
    assert prepared(life, 100) == ()
    assert life.see(seen(None), 1_000) == ()
    assert life.wake() == (Action.FORGET,)
    assert life.record.exit is not None
    assert life.record.exit.detail == "needs 800 MiB, 100 MiB were available after 10 s"
    # The next wait begins without what the last one knew.
    assert prepared(life, None) == (Action.SPAWN,)


def test_a_stop_ends_the_wait_and_a_new_agent_begins_it_anew() -> None:
    life = Life(NEEDED)
    prepared(life, 100)
    record = life.record.durable()
    taken = recover(record, alive=False, recorded=False, now_ms=7, rules=NEEDED, jitter_per_mille=0)
    assert (taken.record.state, taken.record.deadline_ms, taken.record.restarts) == (ReplicaState.BACKOFF, 7, 0)
    assert life.see(StopAsked()) == (Action.FORGET,)
    assert life.is_in(ReplicaState.ABSENT)


def test_an_adopted_engine_waits_for_nothing_and_has_no_limit() -> None:
    engine = attrs.evolve(ASSIGNMENT.engine, binary=None, url="http://h:1", memory_mib=9, memory_limit_mib=9)
    rules = rules_for(attrs.evolve(ASSIGNMENT, engine=engine))
    assert (rules.memory_mib, rules.memory_limit_mib) == (None, None)


@given(needed_mib=st.integers(1, 1_000), readings=st.lists(st.none() | st.integers(0, TOTAL_MIB), max_size=8))
def test_a_start_goes_on_exactly_when_the_newest_known_reading_has_room(
    needed_mib: int, readings: list[int | None]
) -> None:
    life = Life(attrs.evolve(RULES, memory_mib=needed_mib, memory_wait_ms=1_000_000))
    known_mib: int | None = None
    spawned = False
    for number, reading in enumerate(readings):
        actions = life.see(seen(reading), 1) if number else prepared(life, reading)
        known_mib = known_mib if reading is None else reading
        fits = known_mib is None or known_mib >= needed_mib
        assert (Action.SPAWN in actions) == (fits and not spawned)
        spawned = spawned or fits
        assert life.is_in(ReplicaState.STARTING if spawned else ReplicaState.AWAITING_MEMORY)


def held(life: Life, resident_mib: int | None, running: int | None = None) -> Probed:
    return Probed(
        start=life.start,
        health=Health.READY,
        grade=IdentityGrade.PROVEN,
        readings=EngineReadings(running=running, waiting=running),
        resident_mib=resident_mib,
    )


def test_an_engine_over_its_limit_drains_stops_and_is_started_again() -> None:
    life = Life(LIMITED).ready()
    assert life.see(held(life, 500)) == ()
    assert life.see(held(life, None)) == ()
    assert life.is_in(ReplicaState.READY)
    assert life.see(held(life, 501)) == ()
    reason = ExitReason(kind="memory_limit", detail="holds 501 MiB, its limit is 500 MiB")
    assert (life.record.state, life.record.ending, life.record.exit) == (
        ReplicaState.DRAINING, Ending.RESTART, reason,
    )  # fmt: skip
    assert life.see(held(life, 900, running=1), 1_000) == ()
    assert life.see(held(life, 900, running=0), 1_000) == (Action.TERMINATE,)
    life.see(Exited(life.start, ExitReason(kind="exited", code=0, last_lines=("bye",))))
    assert life.see(GroupGone(life.start)) == (Action.FORGET,)
    assert (life.record.state, life.record.restarts) == (ReplicaState.BACKOFF, 1)
    assert life.record.exit == attrs.evolve(reason, code=0, last_lines=("bye",))
    life.ready()


def test_an_engine_that_leaks_again_and_again_is_given_up() -> None:
    life = Life(LIMITED)
    for _ in range(LIMITED.restart_budget + 1):
        life.ready()
        life.see(held(life, 600))
        assert life.wake() == (Action.TERMINATE,)
        life.see(GroupGone(life.start))
    assert life.is_in(ReplicaState.FAILED)
    assert life.record.exit == ExitReason(kind="memory_limit", detail="holds 600 MiB, its limit is 500 MiB")


def test_an_engine_that_crashes_while_it_drains_keeps_the_reason_why_it_did() -> None:
    life = Life(LIMITED).ready()
    life.see(held(life, 600))
    assert life.see(Exited(life.start, CRASH)) == (Action.KILL,)
    life.see(GroupGone(life.start))
    assert life.record.exit is not None
    assert (life.record.exit.kind, life.record.exit.code) == ("memory_limit", 0)


def test_what_does_not_serve_yet_is_not_drained() -> None:
    life = Life(LIMITED).launch()
    assert life.see(held(life, 600)) == (Action.KILL,)
    life.see(GroupGone(life.start))
    assert (life.record.state, life.record.restarts) == (ReplicaState.BACKOFF, 1)


def test_a_stop_takes_over_from_a_restart_for_memory() -> None:
    life = Life(LIMITED).ready()
    life.see(held(life, 600))
    life.see(StopAsked())
    assert life.wake() == (Action.TERMINATE,)
    life.see(GroupGone(life.start))
    assert life.is_in(ReplicaState.ABSENT)


def test_a_new_agent_drains_what_holds_too_much_when_it_looks_first() -> None:
    life = Life(LIMITED).ready()
    found = recover(life.record.durable(), alive=True, recorded=True, now_ms=7, rules=LIMITED, jitter_per_mille=0)
    life.record = found.record
    assert life.see(held(life, 600)) == ()
    assert (life.record.state, life.record.ending) == (ReplicaState.DRAINING, Ending.RESTART)


def test_a_new_agent_ends_what_the_last_one_drained_for_its_memory() -> None:
    life = Life(LIMITED).ready()
    life.see(held(life, 600))
    taken = recover(life.record, alive=True, recorded=True, now_ms=7, rules=LIMITED, jitter_per_mille=0)
    assert (taken.actions, taken.record.ending) == ((Action.TERMINATE,), Ending.RESTART)
    life.record = taken.record
    life.see(Tick())
    life.see(GroupGone(life.start))
    assert life.is_in(ReplicaState.BACKOFF)
