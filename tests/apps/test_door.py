"""The node's doorkeeper: who gets in, where to, and when they must go."""

from collections.abc import Iterator

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from lunanexa_apps.node.door import DoorLimits, lives, serves
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.ids import StartId
from lunanexa_core.southbound.heartbeat import IdentityGrade, ReplicaState
from lunanexa_ports.data_door import DoorRefusal, Passage
from tests.apps.door_machine import GATEWAY, START, Machine, record
from tests.examples import examples


def test_a_gateway_reaches_the_start_that_it_names() -> None:
    machine = Machine()
    assert machine.enter([]).to == EngineAddress("127.0.0.1", 9_000)
    machine.records = [record(host="10.0.0.9", port=11_434)]
    assert machine.enter([]).to == EngineAddress("10.0.0.9", 11_434)


@pytest.mark.parametrize(
    "identity",
    [
        "lunanexa://cl_1/node/holder",
        "lunanexa://cl_1/controller/holder",
        "lunanexa://cl_2/gateway/holder",
        "lunanexa://cl_1/gateway/",
        "lunanexa://cl_1/gateway/a/b",
        "spiffe://cl_1/gateway/holder",
        "",
    ],
)
def test_nobody_but_a_gateway_of_this_cluster(identity: str) -> None:
    assert Machine().door.admit(attrs.evolve(GATEWAY, identity=identity), START) is DoorRefusal.NOT_A_GATEWAY


def test_a_node_that_is_of_no_cluster_lets_nobody_in() -> None:
    machine = Machine()
    machine.cluster = None
    assert machine.door.admit(GATEWAY, START) is DoorRefusal.NOT_A_GATEWAY


def test_a_certificate_is_judged_by_the_nodes_own_clock() -> None:
    machine = Machine()
    machine.wall_ms = 1_000_000_000
    assert machine.door.admit(GATEWAY, START) is DoorRefusal.EXPIRED
    machine.wall_ms -= 1
    machine.revoked = {"a1"}
    assert machine.door.admit(GATEWAY, START) is DoorRefusal.REVOKED


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        (None, DoorRefusal.NO_START_ID),
        ("", DoorRefusal.NO_START_ID),
        ("start_2_abcdefghij", DoorRefusal.UNKNOWN_START_ID),
        (START.upper(), DoorRefusal.UNKNOWN_START_ID),
        (START[:-1], DoorRefusal.UNKNOWN_START_ID),
    ],
)
def test_the_start_must_be_named(name: str | None, refusal: DoorRefusal) -> None:
    assert Machine().door.admit(GATEWAY, name) is refusal


@pytest.mark.parametrize("state", list(ReplicaState))
def test_only_what_serves_is_reached(state: ReplicaState) -> None:
    machine = Machine()
    machine.records = [record(state=state)]
    admitted = machine.door.admit(GATEWAY, START)
    if state in (ReplicaState.READY, ReplicaState.DRAINING):
        assert not isinstance(admitted, DoorRefusal)
        machine.records = [record(state=state, grade=IdentityGrade.NONE)]
        assert machine.door.admit(GATEWAY, START) is DoorRefusal.UNKNOWN_START_ID
        machine.records = [record(state=state, port=None)]
    assert machine.door.admit(GATEWAY, START) is DoorRefusal.UNKNOWN_START_ID


def test_an_engine_that_only_says_who_it_is_is_the_kernels_business() -> None:
    machine = Machine()
    machine.records = [record(grade=IdentityGrade.DECLARED)]
    machine.enter([])


def test_no_lease_no_passage() -> None:
    machine, closed = Machine(), list[int]()
    machine.enter(closed)
    machine.mono_ms = machine.lease_until_ms
    assert machine.door.admit(GATEWAY, START) is DoorRefusal.NO_LEASE
    machine.door.look()
    assert closed == [1]
    machine.door.look()
    assert closed == [1]
    machine.lease_until_ms += 1
    machine.enter([])


def test_bounds() -> None:
    machine = Machine(DoorLimits(each_start=2, total=3))
    machine.records.append(record(StartId("start_2")))
    first = machine.enter([])
    machine.enter([])
    assert machine.door.admit(GATEWAY, START) is DoorRefusal.FULL
    machine.enter([], start="start_2")
    assert machine.door.admit(GATEWAY, "start_2") is DoorRefusal.FULL
    first.left()
    first.left()
    assert sorted(machine.door.open_to()) == [START, "start_2"]
    machine.enter([])


def test_a_replica_that_is_unwell_for_a_moment_keeps_what_it_has() -> None:
    machine, closed = Machine(), list[int]()
    machine.enter(closed)
    for state in (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.STOPPING):
        machine.records = [record(state=state)]
        machine.door.look()
        assert closed == []
    machine.records = [record(state=ReplicaState.BACKOFF)]
    machine.door.look()
    assert closed == [1]


def test_what_ended_before_it_was_listened_to_is_told_at_once() -> None:
    machine, closed = Machine(), list[int]()
    passage = machine.door.admit(GATEWAY, START)
    assert not isinstance(passage, DoorRefusal)
    machine.revoked = {"a1"}
    machine.door.look()
    passage.on_close(lambda: closed.append(1))
    assert closed == [1]


@attrs.define(eq=False)
class Held:
    """A passage, and what its connection was told."""

    passage: Passage
    start: StartId
    serial: str
    closed: int = 0
    left: bool = False

    def close(self) -> None:
        self.closed += 1


STARTS = [StartId(f"start_{number}") for number in range(3)]
SERIALS = ["a1", "b2"]


class DoorMachine(RuleBasedStateMachine):
    """No passage ever outlives its lease, its start or its certificate, whatever happens in whatever order."""

    passages = Bundle("passages")

    @initialize()
    def begin(self) -> None:
        self.machine = Machine(DoorLimits(each_start=3, total=5))
        self.machine.records = [record(start) for start in STARTS]
        self.held: list[Held] = []

    @rule(target=passages, start=st.sampled_from(STARTS), serial=st.sampled_from(SERIALS))
    def enter(self, start: StartId, serial: str) -> Held | None:
        machine = self.machine
        admitted = machine.door.admit(attrs.evolve(GATEWAY, serial=serial), start)
        serving = any(one.start == start and serves(one) for one in machine.records)
        allowed = machine.mono_ms < machine.lease_until_ms and serving and serial not in machine.revoked
        there = [one for one in self.standing() if one.start == start]
        assert isinstance(admitted, DoorRefusal) == (not allowed or len(there) == 3 or len(list(self.standing())) == 5)
        if isinstance(admitted, DoorRefusal):
            return None
        held = Held(admitted, start, serial)
        admitted.on_close(held.close)
        self.held.append(held)
        return held

    @rule(held=consumes(passages))
    def leave(self, held: Held | None) -> None:
        if held is not None:
            held.left = True
            held.passage.left()

    @rule(by_ms=st.integers(1, 400))
    def time_passes(self, by_ms: int) -> None:
        """The lease's keeper wakes the door when it lapses."""
        machine = self.machine
        lapses = machine.mono_ms < machine.lease_until_ms <= machine.mono_ms + by_ms
        machine.mono_ms += by_ms
        if lapses:
            machine.door.look()

    @rule(for_ms=st.integers(1, 600))
    def renewed(self, for_ms: int) -> None:
        self.machine.lease_until_ms = max(self.machine.lease_until_ms, self.machine.mono_ms + for_ms)
        self.machine.door.look()

    @rule(place=st.integers(0, 2), state=st.sampled_from(ReplicaState))
    def replica_changes(self, place: int, state: ReplicaState) -> None:
        grade = IdentityGrade.PROVEN if state in (ReplicaState.READY, ReplicaState.DRAINING) else IdentityGrade.NONE
        self.machine.records[place] = attrs.evolve(self.machine.records[place], state=state, grade=grade)
        self.machine.door.look()

    @rule(place=st.integers(0, 2), number=st.integers(3, 9))
    def replica_starts_anew(self, place: int, number: int) -> None:
        self.machine.records[place] = record(StartId(f"start_{number}"))
        self.machine.door.look()

    @rule(serial=st.sampled_from(SERIALS))
    def revoke(self, serial: str) -> None:
        self.machine.revoked ^= {serial}
        self.machine.door.look()

    def standing(self) -> Iterator[Held]:
        return (one for one in self.held if not one.left and not one.closed)

    @invariant()
    def nothing_outlives_its_right(self) -> None:
        machine = self.machine
        living = {one.start for one in machine.records if lives(one)}
        for one in self.held:
            assert one.closed <= 1
        for one in self.standing():
            assert machine.mono_ms < machine.lease_until_ms
            assert one.start in living
            assert one.serial not in machine.revoked
        assert sorted(machine.door.open_to()) == sorted(one.start for one in self.standing())


TestDoorMachine = DoorMachine.TestCase
TestDoorMachine.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
