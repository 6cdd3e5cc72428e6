"""Each invariant sees its own fault: a checker that can't fail proves nothing."""

from collections.abc import Callable

import attrs
import pytest

from lunanexa_apps.controller.rows import to_row
from lunanexa_core.admission.queue import Waiter
from lunanexa_core.events import DirectiveChanged, Liveness, LivenessChanged, NodeRevoked, ReplicaChanged
from lunanexa_core.ids import AssignmentId, StartId
from lunanexa_core.routing.pick import Granted
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.southbound.heartbeat import IdentityGrade
from lunanexa_core.state import Leaving, State
from lunanexa_core.time import Instant
from lunanexa_core.workload import Attempt
from lunanexa_simulation.checkers import INVARIANTS
from lunanexa_simulation.invariants.store import replay_equals_live
from lunanexa_simulation.sight import OpenPassage, Paced
from lunanexa_simulation.verdicts import SafetyBroken
from tests.core import builders
from tests.simulation.small import Small, small_world

OPEN = builders.request(2).workload
SETTLED = builders.request(1).workload
LATER = StartId("st_2")
GRANTED = Granted(workload=OPEN, deployment=builders.DEPLOYMENT, report=builders.report(), queued_ms=0)


async def test_a_healthy_world_passes_and_every_invariant_is_asked() -> None:
    async with small_world() as small:
        small.checkers.look()
        small.checkers.look_back()
        assert set(small.checkers.asked) == {check.__name__ for check in (*INVARIANTS, replay_equals_live)}
        assert small.sight.shadow.sequence == small.kernel.head.sequence
        assert small.sight.grants.granted_starts == {SETTLED: [builders.START], OPEN: [builders.START]}


def shadow(small: Small) -> State:
    small.sight.catch_up()
    return small.sight.shadow.replay.state


def second_receipt(small: Small) -> None:
    small.sight.catch_up()
    small.sight.shadow.receipts[SETTLED] *= 2


def receipt_without_admission(small: Small) -> None:
    small.sight.catch_up()
    small.sight.shadow.admitted.discard(SETTLED)


def attempts(small: Small, *found: Attempt) -> None:
    small.sight.catch_up()
    receipts = small.sight.shadow.receipts[SETTLED]
    receipts[0] = attrs.evolve(receipts[0], settlement=attrs.evolve(receipts[0].settlement, attempts=found))


def third_attempt(small: Small) -> None:
    attempts(small, *[Attempt(start=builders.START, failure="engine_cut")] * 3)


def two_attempts_that_count(small: Small) -> None:
    attempts(small, *[Attempt(start=builders.START, status=200)] * 2)


def workload_forgotten(small: Small) -> None:
    for state in (small.kernel.state, shadow(small)):
        del state.open[OPEN]
        state.open_of_key.clear()
        state.open_of_deployment.clear()
    small.kernel.observed.forget(OPEN)


def counter_leaks(small: Small) -> None:
    for state in (small.kernel.state, shadow(small)):
        state.open_of_key[builders.api_key().key] += 1


def deployment_counter_leaks(small: Small) -> None:
    for state in (small.kernel.state, shadow(small)):
        state.open_of_deployment[builders.DEPLOYMENT] -= 1


def window_leaks(small: Small) -> None:
    key, wall_ms = builders.api_key().key, small.kernel.now().wall_ms
    for state in (small.kernel.state, shadow(small)):
        state.windows[key] = state.windows[key].take(wall_ms, 5)


def window_is_lost(small: Small) -> None:
    for state in (small.kernel.state, shadow(small)):
        state.windows.clear()


def limit_is_passed(small: Small) -> None:
    key = small.kernel.state.keys[builders.api_key().key]
    for state in (small.kernel.state, shadow(small)):
        state.keys[key.key] = attrs.evolve(key, requests_per_minute=1)


def slot_leaks(small: Small) -> None:
    small.kernel.observed.slots_held[builders.START] += 1


def slots_overcommitted(small: Small) -> None:
    observed = small.kernel.observed
    observed.replicas[builders.ASSIGNMENT] = builders.report(slots=0)


def hold_without_workload(small: Small) -> None:
    small.kernel.observed.hold(SETTLED, small.kernel.observed.held[OPEN])


def waiter_holds_a_slot(small: Small) -> None:
    waiter = Waiter(workload=OPEN, band=1, arrived_mono_ms=0, deadline_mono_ms=1, order=1)
    small.kernel.observed.queue(builders.DEPLOYMENT).offer(waiter)


def epoch_falls(small: Small) -> None:
    small.sight.highest["controller"] = (small.kernel.epoch + 1, 0)


def node_rolls_back(small: Small) -> None:
    fences = iter([{"node-1": (2, 5)}, {"node-1": (2, 4)}])
    small.sight.fences = lambda: next(fences)
    small.checkers.look()


def two_may_write(small: Small) -> None:
    small.sight.writers = ["controller", "controller-2"]


def record_changed(small: Small) -> None:
    row = small.journal.rows[3]
    small.journal.rows[3] = attrs.evolve(row, record=row.record.replace(b'"version"', b'"Version"'))


def row_lost(small: Small) -> None:
    del small.journal.rows[4]


def last_row_lost(small: Small) -> None:
    small.journal.rows.pop()


def state_changed_without_event(small: Small) -> None:
    small.kernel.state.nodes[builders.NODE] = attrs.evolve(small.kernel.state.nodes[builders.NODE], agent_version="9")


def replayed_otherwise(small: Small) -> None:
    small.kernel.replay_differs = True


def past_start_granted(small: Small) -> None:
    small.sight.grants.events([ReplicaChanged(builders.NODE, builders.report(start=LATER))])
    small.sight.grants.granted(GRANTED)


def lost_node_granted(small: Small) -> None:
    small.sight.grants.events([LivenessChanged(builders.NODE, Liveness.LOST)])
    small.sight.grants.granted(GRANTED)


def cordoned_node_granted(small: Small) -> None:
    small.sight.grants.events([DirectiveChanged(node=builders.NODE, directive=Directive.CORDON)])
    small.sight.grants.granted(GRANTED)


def revoked_node_granted(small: Small) -> None:
    small.sight.grants.events([NodeRevoked(node=builders.NODE, reason="stolen")])
    small.sight.grants.granted(GRANTED)


def third_grant(small: Small) -> None:
    for _ in range(2):
        small.sight.grants.granted(GRANTED)


def unproven_but_routable(small: Small) -> None:
    """A rule that asks for no identity."""
    for state in (small.kernel.state, shadow(small)):
        state.replicas[builders.ASSIGNMENT] = builders.report(identity=IdentityGrade.DECLARED)
    small.sight.routable = lambda kernel, _deployment: list(kernel.state.replicas.values())


def two_processes(small: Small) -> None:
    small.sight.running = lambda: [(builders.ASSIGNMENT, builders.START), (builders.ASSIGNMENT, LATER)]


OTHERS = (AssignmentId("asg_2"), AssignmentId("asg_3"))


def exclusive(small: Small, replicas: int, *living: AssignmentId) -> None:
    """The deployment has so many places, and these replicas of it live, of which some were taken from their nodes."""
    for state in (small.kernel.state, shadow(small)):
        known = state.deployments[builders.DEPLOYMENT]
        spec = attrs.evolve(known.spec, exclusive=True, cut_off_keep_ms=0, replicas=replicas)
        state.deployments[builders.DEPLOYMENT] = attrs.evolve(known, spec=spec)
    small.sight.deployment_of.update(dict.fromkeys(OTHERS, builders.DEPLOYMENT))
    small.sight.running = lambda: [(name, StartId(f"start of {name}")) for name in living]


def two_on_one_place(small: Small) -> None:
    exclusive(small, 1, builders.ASSIGNMENT, OTHERS[0])


def one_more_while_too_many_live(small: Small) -> None:
    exclusive(small, 2, builders.ASSIGNMENT, OTHERS[0])
    small.checkers.look()
    exclusive(small, 1, builders.ASSIGNMENT, OTHERS[0])
    small.checkers.look()
    exclusive(small, 1, OTHERS[1])
    small.checkers.look()
    exclusive(small, 1, OTHERS[0], OTHERS[1])


def ordered_anew_while_too_many_live(small: Small) -> None:
    fewer_places_before_what_was_ordered_comes(small)
    for state in (small.kernel.state, shadow(small)):
        ordered = state.assignments[builders.ASSIGNMENT]
        state.assignments[builders.ASSIGNMENT] = attrs.evolve(ordered, generation=ordered.generation + 1)
    small.checkers.look()
    exclusive(small, 2, *OTHERS, builders.ASSIGNMENT)


def fewer_places_before_what_was_ordered_comes(small: Small) -> None:
    exclusive(small, 3, *OTHERS)
    small.checkers.look()
    exclusive(small, 2, *OTHERS)
    small.checkers.look()


def fewer_places_before_what_is_being_started_comes(small: Small) -> None:
    exclusive(small, 2, OTHERS[0])
    small.checkers.look()
    for state in (small.kernel.state, shadow(small)):
        one = state.assignments.pop(builders.ASSIGNMENT)
        state.leaving[one.assignment] = Leaving(deployment=one.deployment, node=one.node, generation=9, bound_ms=None)
    exclusive(small, 1, OTHERS[0])
    small.checkers.look()


def one_more_than_what_is_being_started(small: Small) -> None:
    fewer_places_before_what_is_being_started_comes(small)
    exclusive(small, 1, *OTHERS)


def passage(small: Small, **changes: object) -> None:
    fine = OpenPassage(node=builders.NODE, asked_for=builders.START, reached=builders.START, unleased_ms=-1)
    small.sight.at_doors = lambda: [fine, attrs.evolve(fine, **changes)]  # type: ignore[arg-type]  # the test's business


def passage_outlives_its_lease(small: Small) -> None:
    passage(small, unleased_ms=61)


def passage_leads_elsewhere(small: Small) -> None:
    passage(small, reached=LATER)


def time_runs_away(small: Small) -> None:
    now = small.kernel.now()
    began = Instant(now.mono_ms - 60_000, now.wall_ms - 67_000)
    small.sight.paced = Paced(reign=(small.kernel, small.kernel.epoch), began=began, leant_ms=0)


def secret_in_a_log(small: Small) -> None:
    small.sight.new_texts = lambda: [("log", f'{{"event":"refused","key":"{builders.SECRET}"}}')]


def secret_in_a_row(small: Small) -> None:
    small.sight.secrets = {"digest": builders.api_key().digest}


FAULTS: list[tuple[str, Callable[[Small], None]]] = [
    ("one_receipt", second_receipt),
    ("one_receipt", receipt_without_admission),
    ("one_receipt", third_attempt),
    ("one_receipt", two_attempts_that_count),
    ("one_receipt", workload_forgotten),
    ("counters_add_up", counter_leaks),
    ("counters_add_up", deployment_counter_leaks),
    ("counters_add_up", slot_leaks),
    ("counters_add_up", window_leaks),
    ("counters_add_up", window_is_lost),
    ("counters_add_up", limit_is_passed),
    ("counters_add_up", slots_overcommitted),
    ("counters_add_up", hold_without_workload),
    ("counters_add_up", waiter_holds_a_slot),
    ("fences_never_fall", epoch_falls),
    ("fences_never_fall", node_rolls_back),
    ("one_writer", two_may_write),
    ("chains_verify", record_changed),
    ("chains_verify", row_lost),
    ("chains_verify", last_row_lost),
    ("shadow_equals_live", state_changed_without_event),
    ("snapshots_agree", replayed_otherwise),
    ("granted_newest_only", past_start_granted),
    ("granted_newest_only", lost_node_granted),
    ("granted_newest_only", revoked_node_granted),
    ("granted_newest_only", third_grant),
    ("routable_is_bound", unproven_but_routable),
    ("one_process_each", two_processes),
    ("exclusive_alone", two_on_one_place),
    ("exclusive_alone", one_more_while_too_many_live),
    ("exclusive_alone", ordered_anew_while_too_many_live),
    ("exclusive_alone", one_more_than_what_is_being_started),
    ("door_lease", passage_outlives_its_lease),
    ("door_lease", passage_leads_elsewhere),
    ("time_is_steady", time_runs_away),
    ("no_secret_shown", secret_in_a_log),
    ("no_secret_shown", secret_in_a_row),
]


@pytest.mark.parametrize(("invariant", "plant"), FAULTS, ids=[plant.__name__ for _, plant in FAULTS])
async def test_a_planted_fault_is_seen(invariant: str, plant: Callable[[Small], None]) -> None:
    async with small_world() as small:
        plant(small)
        with pytest.raises(SafetyBroken, match=f"^{invariant}: "):
            small.checkers.look()


async def test_what_was_ordered_before_places_were_taken_away_may_come() -> None:
    """Nobody can call it back: its node may have begun already."""
    async with small_world() as small:
        fewer_places_before_what_was_ordered_comes(small)
        exclusive(small, 2, *OTHERS, builders.ASSIGNMENT)
        small.checkers.look()
    async with small_world() as small:
        fewer_places_before_what_is_being_started_comes(small)
        exclusive(small, 1, OTHERS[0], builders.ASSIGNMENT)
        small.checkers.look()


async def test_one_who_leads_again_has_the_time_of_the_rows() -> None:
    async with small_world() as small:
        time_runs_away(small)
        assert small.sight.paced is not None
        kernel, epoch = small.sight.paced.reign
        small.sight.paced = attrs.evolve(small.sight.paced, reign=(kernel, epoch - 1))
        small.checkers.look()


async def test_a_row_before_its_time_is_seen() -> None:
    async with small_world() as small:
        small.checkers.look()
        event, earlier_ms = LivenessChanged(builders.NODE, Liveness.LOST), small.sight.shadow.wall_ms - 1
        row = to_row(small.kernel.head, event, epoch=small.kernel.epoch, wall_ms=earlier_ms, actor="test")
        small.sight.shadow.feed([row])
        with pytest.raises(SafetyBroken, match=r"^chains_verify: row \d+ .* its time is before"):
            small.checkers.look()


async def test_a_full_replay_sees_what_no_event_tells() -> None:
    async with small_world() as small:
        small.kernel.state.totals.clear()
        with pytest.raises(SafetyBroken, match=r"^replay_equals_live: .*totals"):
            small.checkers.look_back()


def test_every_invariant_has_a_fault_that_it_must_see() -> None:
    assert {name for name, _ in FAULTS} == {check.__name__ for check in INVARIANTS}
