"""How well a routable replica would serve a request: each scorer 0…1000 per mille, then a seeded tie-break."""

import hashlib

from lunanexa_core.ids import StartId, WorkloadId
from lunanexa_core.observed import Observed
from lunanexa_core.policy import Policy
from lunanexa_core.southbound.heartbeat import ReplicaReport
from lunanexa_core.time import Instant


def free_slots(observed: Observed, policy: Policy, report: ReplicaReport, now: Instant) -> int:
    """Slots left: the replica's limit less what we hold or, while we hold none, less what the engine itself
    says is running (others may use an adopted engine). Unknown readings count for nothing."""
    held = observed.slots_held.get(report.start, 0)
    return max(0, report.slots - (held or _running(observed, policy, report, now)))


def _running(observed: Observed, policy: Policy, report: ReplicaReport, now: Instant) -> int:
    """What the engine said that it runs, if that is still true as far as we know: a reading may be old, or
    count requests of ours that have ended since."""
    newest = observed.replicas.get(report.assignment)
    if newest is None or newest.start != report.start or newest.readings.running is None:
        return 0
    read_ms = observed.read_mono_ms.get(report.assignment, now.mono_ms)
    outdated = now.mono_ms - read_ms >= policy.reading_fresh_ms
    if outdated or read_ms <= observed.released_mono_ms.get(report.start, read_ms - 1):
        return 0
    return newest.readings.running


def free_share(observed: Observed, policy: Policy, report: ReplicaReport, now: Instant) -> int:
    """Free slots as a share of all, per mille."""
    return free_slots(observed, policy, report, now) * 1000 // max(1, report.slots)


def rendezvous(workload: WorkloadId, start: StartId) -> int:
    """Highest random weight (Thaler and Ravishankar): the same pair has the same weight everywhere."""
    return int.from_bytes(hashlib.sha256(f"{workload}\0{start}".encode()).digest()[:8])
