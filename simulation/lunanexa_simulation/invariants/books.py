"""What is counted and booked: receipts, counters, windows, bounds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from lunanexa_apps.controller.kernel import Kernel
from lunanexa_core.admission.windows import BUCKET_MS, WINDOW_MS, KeyWindows
from lunanexa_core.ids import KeyId
from lunanexa_simulation.sight import Sight

T = TypeVar("T")

ATTEMPTS_MAX: Final = 2


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
        requests, tokens = _taken_of(sight, key.key, wall_ms // BUCKET_MS)
        if found != (requests, tokens):
            return f"the windows of {key.key} hold {found}, admitted were {(requests, tokens)}"
        if key.requests_per_minute is not None and requests > key.requests_per_minute:
            return f"{requests} requests of {key.key} within a minute, allowed are {key.requests_per_minute}"
        if key.concurrency is not None and kernel.state.open_of_key.get(key.key, 0) > key.concurrency:
            return f"{key.key} has more than {key.concurrency} requests in progress"
    return None


def _taken_of(sight: Sight, key: KeyId, bucket: int) -> tuple[int, int]:
    """Requests and tokens of the last minute. They are others with another row, or in another bucket."""
    place = (sight.shadow.sequence, bucket)
    if sight.taken_at != place:
        sight.taken_at, sight.taken_of = place, {}
    if key not in sight.taken_of:
        requests = tokens = 0
        for taken in reversed(sight.shadow.taken.values()):
            if (taken.wall_ms // BUCKET_MS + 1) * BUCKET_MS + WINDOW_MS <= bucket * BUCKET_MS:
                break
            if taken.key == key:
                requests, tokens = requests + taken.requests, tokens + taken.tokens
        sight.taken_of[key] = requests, tokens
    return sight.taken_of[key]


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
