"""Who is told what a batch of the kernel did, and how."""

from collections.abc import Sequence
from typing import Protocol

from lunanexa_core.events import Event
from lunanexa_core.ids import WorkloadId
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.routing.pick import Denied, Granted
from lunanexa_core.time import Instant


class KernelListener(Protocol):
    """Who is told, in the kernel's own task; implementations never wait."""

    def granted(self, granted: Granted) -> None: ...
    def denied(self, denied: Denied) -> None: ...
    def place(self, workload: WorkloadId, place: int) -> None: ...
    def events(self, events: Sequence[Event]) -> None: ...
    def voided(self, workload: WorkloadId, refusal: Refusal) -> None: ...


def tell_queues(
    listener: KernelListener,
    observed: Observed,
    policy: Policy,
    *,
    granted: Sequence[Granted],
    denied: Sequence[Denied],
    now: Instant,
) -> None:
    """Tells who waits no more, and the places of those who do."""
    for one in granted:
        listener.granted(one)
    for other in denied:
        listener.denied(other)
    for queue in observed.queues.values():
        for place, waiter in enumerate(queue.ordered(now.mono_ms, policy.band_age_ms)):
            listener.place(waiter.workload, place)
