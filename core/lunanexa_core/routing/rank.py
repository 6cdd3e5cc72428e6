"""How well a routable replica would serve a request: each scorer 0…1000 per mille, then a seeded tie-break."""

import hashlib

from lunanexa_core.ids import StartId, WorkloadId
from lunanexa_core.observed import Observed
from lunanexa_core.southbound.heartbeat import ReplicaReport


def free_slots(observed: Observed, report: ReplicaReport) -> int:
    """Slots left: the replica's limit less what we hold, and less what the engine itself says is running
    where that is more (others may use an adopted engine). Unknown readings count for nothing."""
    held = observed.slots_held.get(report.start, 0)
    newest = observed.replicas.get(report.assignment)
    running = newest.readings.running if newest is not None and newest.start == report.start else None
    foreign = 0 if running is None else max(0, running - held)
    # A reading may still count requests of ours that have ended since; it may not lock us out for good.
    return max(0, report.slots - held - (foreign if held == 0 else 0))


def free_share(observed: Observed, report: ReplicaReport) -> int:
    """Free slots as a share of all, per mille."""
    return free_slots(observed, report) * 1000 // max(1, report.slots)


def rendezvous(workload: WorkloadId, start: StartId) -> int:
    """Highest random weight (Thaler and Ravishankar): the same pair has the same weight everywhere."""
    return int.from_bytes(hashlib.sha256(f"{workload}\0{start}".encode()).digest()[:8])
