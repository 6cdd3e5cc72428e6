"""The queue of one service: bounded by admission, ordered by band, then deadline, then arrival.

A request waits here and is bound to a replica only when one has a slot free (late binding): a replica
that dies takes no waiter with it. A waiter's band rises with its age, so that none starves.
"""

from collections.abc import Iterable

import attrs

from lunanexa_core.ids import StartId, WorkloadId


@attrs.frozen(kw_only=True)
class Waiter:
    """One request that waits. Times are the kernel's monotonic milliseconds."""

    workload: WorkloadId
    band: int
    arrived_mono_ms: int
    deadline_mono_ms: int
    order: int
    """Rises with each admission; the last tie-break."""
    excluded: frozenset[StartId] = frozenset()
    """Replicas on which an attempt of it has failed."""

    def band_at(self, now_mono_ms: int, band_age_ms: int) -> int:
        """Its band, risen with its age."""
        return self.band + (now_mono_ms - self.arrived_mono_ms) // band_age_ms


@attrs.define
class ServiceQueue:
    """Waiters of one service. Every operation is total: removing what is not there changes nothing."""

    waiters: dict[WorkloadId, Waiter] = attrs.Factory(dict)

    def __len__(self) -> int:
        return len(self.waiters)

    def offer(self, waiter: Waiter) -> None:
        """Adds a waiter; its bound was checked by admission."""
        self.waiters[waiter.workload] = waiter

    def remove(self, workload: WorkloadId) -> bool:
        """Frees a place at once; whether it was held."""
        return self.waiters.pop(workload, None) is not None

    def ordered(self, now_mono_ms: int, band_age_ms: int) -> list[Waiter]:
        """All waiters, the next to be served first."""

        def rank(waiter: Waiter) -> tuple[int, int, int]:
            return (-waiter.band_at(now_mono_ms, band_age_ms), waiter.deadline_mono_ms, waiter.order)

        return sorted(self.waiters.values(), key=rank)


def places_of(queues: Iterable[ServiceQueue], now_mono_ms: int, band_age_ms: int) -> dict[WorkloadId, int]:
    """How many waiters are before each one; 0 is next."""
    return {
        waiter.workload: place
        for queue in queues
        for place, waiter in enumerate(queue.ordered(now_mono_ms, band_age_ms))
    }
