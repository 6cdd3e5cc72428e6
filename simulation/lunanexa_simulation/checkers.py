"""The invariants, each one function that says what is broken, or nothing.

They are asked at every quiescent instant of a run. An invariant that never looked is no proof, so it is
counted how often each was asked.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final, TypeAlias, TypeVar

import attrs

from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.replay import Replay
from lunanexa_apps.controller.rows import PRUNED_ACTION, pruning_of
from lunanexa_core.admission.windows import BUCKET_MS, WINDOW_MS, KeyWindows
from lunanexa_core.ids import DeploymentId, StartId
from lunanexa_core.journal import Head, Row
from lunanexa_core.southbound.heartbeat import IdentityGrade
from lunanexa_core.state import State
from lunanexa_core.state_digest import state_digest
from lunanexa_core.time import SLEW_PER_MILLE
from lunanexa_ports.errors import PortFault
from lunanexa_simulation.sight import Sight
from lunanexa_simulation.verdicts import SafetyBroken

T = TypeVar("T")
Invariant: TypeAlias = Callable[[Sight], str | None]

ATTEMPTS_MAX: Final = 2
_ROUNDING_MS: Final = 2
_TABLES: Final = [field.name for field in attrs.fields(State) if isinstance(getattr(State(), field.name), dict)]
_LIKENED_MAX: Final = 64
_NOTICED_MS: Final = 60
"""So late a lapse is noticed on a machine whose clock runs fast: its timers don't."""


def one_receipt(sight: Sight) -> str | None:
    """Each admitted workload has one receipt at most, of two attempts at most, and is open until then."""
    for workload in sight.shadow.news:
        receipts = sight.shadow.receipts[workload]
        if len(receipts) > 1:
            return f"{workload} has {len(receipts)} receipts"
        if workload not in sight.shadow.admitted:
            return f"{workload} has a receipt and was never admitted"
        attempts = receipts[0].settlement.attempts
        if len(attempts) > ATTEMPTS_MAX:
            return f"{workload} had {len(attempts)} attempts"
        if sum(attempt.failure is None for attempt in attempts) > 1:
            return f"{workload} has more than one attempt whose output counts"
    sight.shadow.news.clear()
    if sight.kernel is not None and sight.shadow.open != sight.kernel.state.open.keys():
        return f"open and without receipt differ in {sorted(sight.shadow.open ^ sight.kernel.state.open.keys())}"
    return None


def counters_add_up(sight: Sight) -> str | None:
    """Counters are what counting gives; what is held belongs to open workloads, so that at rest nothing is."""
    if sight.kernel is None:
        return None
    state, observed = sight.kernel.state, sight.kernel.observed
    if not _counted(state.open_of_key, [workload.key for workload in state.open.values()]):
        return f"open_of_key is {state.open_of_key}"
    if not _counted(state.open_of_deployment, [workload.deployment for workload in state.open.values()]):
        return f"open_of_deployment is {state.open_of_deployment}"
    if not _counted(observed.slots_held, [held.start for held in observed.held.values()]):
        return f"slots_held is {observed.slots_held}"
    waiting = [workload for queue in observed.queues.values() if queue for workload in queue.waiters]
    if len(set(waiting)) < len(waiting) or observed.held.keys() & set(waiting):
        return "a workload stands in two places"
    for name, workloads in (("held", observed.held), ("queued", waiting), ("timed", observed.admitted_mono_ms)):
        stale = set(workloads) - state.open.keys()
        if stale:
            return f"{sorted(stale)} are {name} and not open"
    return _windows_add_up(sight, sight.kernel) or _within_bounds(sight.kernel)


def _counted(told: Mapping[T, int], one_by_one: Sequence[T]) -> bool:
    return told == Counter(one_by_one) if one_by_one else not told


def _windows_add_up(sight: Sight, kernel: Kernel) -> str | None:
    """Against a list of all that was admitted: what counts of the last minute, and never more requests than
    allowed. What an engine answers is known afterwards, so that tokens may pass their limit."""
    wall_ms = kernel.now().wall_ms
    for key in kernel.state.keys.values():
        if key.requests_per_minute is None and key.tokens_per_minute is None:
            continue
        windows = kernel.state.windows.get(key.key, KeyWindows())
        found = (windows.requests.spent(wall_ms), windows.tokens.spent(wall_ms))
        requests = tokens = 0
        for taken in reversed(sight.shadow.taken.values()):
            if (taken.wall_ms // BUCKET_MS + 1) * BUCKET_MS + WINDOW_MS <= wall_ms:
                break
            if taken.key == key.key:
                requests, tokens = requests + taken.requests, tokens + taken.tokens
        if found != (requests, tokens):
            return f"the windows of {key.key} hold {found}, admitted were {(requests, tokens)}"
        if key.requests_per_minute is not None and requests > key.requests_per_minute:
            return f"{requests} requests of {key.key} within a minute, allowed are {key.requests_per_minute}"
        if key.concurrency is not None and kernel.state.open_of_key.get(key.key, 0) > key.concurrency:
            return f"{key.key} has more than {key.concurrency} requests in progress"
    return None


def _within_bounds(kernel: Kernel) -> str | None:
    observed, policy = kernel.observed, kernel.policy
    slots_of = {report.start: report.slots for report in observed.replicas.values()}
    for start, held in observed.slots_held.items():
        if held > slots_of.get(start, held):
            return f"{held} requests on the {slots_of[start]} slots of {start}"
    for deployment, queue in observed.queues.items():
        known = kernel.state.deployments.get(deployment)
        if known is not None:
            bound = policy.queue_requests_max + known.spec.replicas * known.spec.engine.slots
            if len(queue) > bound:
                return f"{len(queue)} wait for {deployment}, whose bound is {bound}"
    return None


def fences_never_fall(sight: Sight) -> str | None:
    """(epoch, generation) never falls, on controller or node, whatever dies when."""
    now = dict(sight.fences())
    if sight.kernel is not None:
        now["controller"] = (sight.kernel.epoch, 0)
        for node_id, node in sight.kernel.state.nodes.items():
            now[f"controller for {node_id}"] = (sight.kernel.state.epoch, node.generation)
    for machine, fence in now.items():
        highest = sight.highest.get(machine, (0, 0))
        if fence[0] < highest[0] or fence[1] < highest[1]:
            return f"{machine} fell from {highest} to {fence}"
        sight.highest[machine] = fence
    return None


def one_writer(sight: Sight) -> str | None:
    """Two controllers never think at one instant that they may write, whatever their clocks say."""
    return None if len(sight.writers) < 2 else f"{' and '.join(sight.writers)} may write"


def chains_verify(sight: Sight) -> str | None:
    """Every committed row stands in its chain and in time, and the kernel's head is where the rows end."""
    if sight.shadow.fault is not None:
        return sight.shadow.fault
    kernel = sight.kernel
    if kernel is not None and _place(sight.shadow.replay.head) != _place(kernel.head):
        return f"the rows end at {sight.shadow.replay.head}, the kernel stands at {kernel.head}"
    return None


def _place(head: Head) -> tuple[object, ...]:
    """Without the epoch, which is claimed before there is a row of it."""
    return head.sequence, head.journal, head.ledger


def time_is_steady(sight: Sight) -> str | None:
    """The time that goes into rows leans towards the wall clock by a tenth at most, however that is set."""
    if sight.kernel is None:
        return None
    now = sight.kernel.now()
    if sight.paced is None or sight.paced[0] is not sight.kernel:
        sight.paced = (sight.kernel, now)
    began = sight.paced[1]
    passed_ms, told_ms = now.mono_ms - began.mono_ms, now.wall_ms - began.wall_ms
    lean_ms = passed_ms * SLEW_PER_MILLE // 1_000 + _ROUNDING_MS
    if abs(told_ms - passed_ms) > lean_ms:
        return f"{told_ms} ms are told while {passed_ms} ms passed"
    return None


def shadow_equals_live(sight: Sight) -> str | None:
    """A state fed with committed events alone is the live one."""
    if sight.kernel is None:
        return None
    shadow, live = sight.shadow.replay.state, sight.kernel.state
    difference = _difference(shadow, live)
    if difference is None and sight.likened != sight.shadow.sequence:
        # What is equal and frozen may as well be the same: the next comparison is a look at each and no more.
        sight.likened = sight.shadow.sequence
        for table in _TABLES:
            _liken(getattr(shadow, table), getattr(live, table))
    return difference


def _liken(shadow: dict[object, object], live: Mapping[object, object]) -> None:
    """Of a long table the newest: the others were once."""
    for key in islice(reversed(live), _LIKENED_MAX):
        shadow[key] = live[key]


def snapshots_agree(sight: Sight) -> str | None:
    """No replay beside the kernel comes to another state than it has."""
    differs = sight.kernel is not None and sight.kernel.replay_differs
    return "the replay for a snapshot came to another state" if differs else None


def granted_newest_only(sight: Sight) -> str | None:
    """Only the newest start of an assignment is granted requests, and none whose node is lost or cordoned."""
    return sight.grants.finding


def routable_is_bound(sight: Sight) -> str | None:
    """No replica is routable whose identity is below ``bound``, but where a deployment allows declared ones."""
    if sight.kernel is None:
        return None
    for deployment_id, deployment in sight.kernel.state.deployments.items():
        enough = {IdentityGrade.BOUND, IdentityGrade.PROVEN}
        if deployment.spec.allow_declared:
            enough.add(IdentityGrade.DECLARED)
        if all(report.identity in enough for report in sight.kernel.state.replicas.values()):
            continue  # Whichever are routable.
        for report in sight.routable(sight.kernel, deployment_id):
            if report.identity not in enough:
                return f"{report.start} is routable with identity {report.identity.value}"
    return None


def one_process_each(sight: Sight) -> str | None:
    """An assignment has one live engine process at most: no start precedes the proof of absence."""
    if len(dict(sight.living)) < len(sight.living):
        count = Counter(assignment for assignment, _ in sight.living)
        twice = next(assignment for assignment, starts in count.items() if starts > 1)
        return f"{twice} runs as {[start for assignment, start in sight.living if assignment == twice]}"
    return None


def exclusive_alone(sight: Sight) -> str | None:
    """An exclusive deployment has never more living engines than replicas, whichever nodes they are on. Where fewer are
    wanted than live, what is too much may end, and nothing comes to it."""
    state = sight.shadow.replay.state
    exclusive = {name: one.spec for name, one in state.deployments.items() if one.spec.exclusive}
    sight.places = {name: places for name, places in sight.places.items() if name in exclusive}
    if not exclusive:
        return None
    sight.deployment_of.update((name, one.deployment) for name, one in state.assignments.items())
    living: dict[DeploymentId | None, list[StartId]] = {}
    for assignment, start in sight.living:
        living.setdefault(sight.deployment_of.get(assignment), []).append(start)
    for name, spec in exclusive.items():
        starts = living.get(name, [])
        places = sight.places[name] = max(spec.replicas, min(sight.places.get(name, 0), len(starts)))
        if len(starts) > places:
            return f"{sorted(starts)} live at once, {name} has {places} place{'' if places == 1 else 's'}"
    return None


def door_lease(sight: Sight) -> str | None:
    """Nothing passes a data listener without a live lease, or to another start than the one that was named."""
    for one in sight.at_doors():
        if one.unleased_ms > _NOTICED_MS:
            return f"{one.node} passes on to {one.asked_for}, without a lease for {one.unleased_ms} ms"
        if one.reached not in (None, one.asked_for):
            return f"{one.node} passes on to {one.reached} what was meant for {one.asked_for}"
    return None


def no_secret_shown(sight: Sight) -> str | None:
    """Nothing that was planted as a secret stands in a log line, a journal row or a metric."""
    texts = list(sight.new_texts())
    rows = sight.rows_after(sight.rows_read)
    texts += [(f"row {row.sequence}", row.record.decode()) for row in rows]
    sight.rows_read = rows[-1].sequence if rows else sight.rows_read
    for where, text in texts:
        for name, secret in sight.secrets.items():
            if secret in text:
                return f"{name} stands in {where}"
    return None


INVARIANTS: Final[Sequence[Invariant]] = (
    chains_verify,
    one_writer,
    time_is_steady,
    shadow_equals_live,
    snapshots_agree,
    one_receipt,
    counters_add_up,
    fences_never_fall,
    granted_newest_only,
    routable_is_bound,
    one_process_each,
    exclusive_alone,
    door_lease,
    no_secret_shown,
)


def replay_equals_live(rows: Sequence[Row], live: State) -> str | None:
    """A full replay from nothing gives the live state. Asked at crashes and at the end."""
    prunings = (pruning_of(row) for row in reversed(rows) if row.action == PRUNED_ACTION)
    replayed = Replay(pruning=next(prunings, None))
    try:
        for row in rows:
            replayed.feed(row)
    except PortFault as error:
        return str(error)
    difference = _difference(replayed.state, live)
    if difference is None and state_digest(replayed.state) != state_digest(live):
        return "replayed and live are equal and have different digests"
    return difference


def _difference(replayed: State, live: State) -> str | None:
    if replayed == live:
        return None
    tables = [field.name for field in attrs.fields(State) if getattr(replayed, field.name) != getattr(live, field.name)]
    return f"replayed and live differ in {', '.join(tables)}"


@attrs.define
class Checkers:
    """Asks every invariant of one sight, and counts."""

    sight: Sight
    invariants: Sequence[Invariant] = INVARIANTS
    asked: Counter[str] = attrs.Factory(Counter)

    def look(self) -> None:
        """The check of a quiescent instant. Raises :class:`SafetyBroken` naming the invariant."""
        self.sight.catch_up()
        for invariant in self.invariants:
            self._judge(_name(invariant), invariant(self.sight))

    def look_back(self) -> None:
        """The full replay, for crashes and the end, while the kernel still stands."""
        if self.sight.kernel is not None:
            rows = self.sight.rows_after(0, self.sight.kernel.head.sequence)
            self._judge(_name(replay_equals_live), replay_equals_live(rows, self.sight.kernel.state))

    def _judge(self, name: str, problem: str | None) -> None:
        self.asked[name] += 1
        if problem is not None:
            raise SafetyBroken(f"{name}: {problem}")


def _name(invariant: Callable[..., object]) -> str:
    return invariant.__name__
