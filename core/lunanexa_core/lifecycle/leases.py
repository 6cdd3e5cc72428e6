"""What the lease of its node means to a replica: without one nothing is started, and what may not outlive it ends."""

from typing import assert_never

import attrs

from lunanexa_core.lifecycle.endings import enter, stop
from lunanexa_core.lifecycle.observations import Action, CutOff, LeaseAwaited, LeaseGranted, Step
from lunanexa_core.lifecycle.record import Ending, ReplicaRecord, ReplicaRules
from lunanexa_core.southbound.heartbeat import ExitReason, ReplicaState


def prepare(record: ReplicaRecord, now_ms: int, rules: ReplicaRules) -> Step:
    """The next start begins."""
    fresh = attrs.evolve(
        record, start=None, host=None, port=None, ready_since_ms=None, unhealthy_since_ms=None,
        kills=0, terminations=0, available_mib=None,
    )  # fmt: skip
    return Step(enter(fresh, ReplicaState.STARTING, now_ms, rules.start_timeout_ms), (Action.PREPARE,))


def lease_step(
    record: ReplicaRecord,
    observation: LeaseAwaited | LeaseGranted | CutOff,
    now_ms: int,
    rules: ReplicaRules,
    jitter_per_mille: int,
) -> Step:
    """One observation of the lease. What does not fit the state changes nothing."""
    match observation:
        case LeaseAwaited():
            return _await_lease(record, now_ms)
        case LeaseGranted():
            return prepare(record, now_ms, rules) if record.state is ReplicaState.AWAITING_LEASE else Step(record)
        case CutOff():
            return _cut_off(record, now_ms, rules, jitter_per_mille)
        case _:
            assert_never(observation)


def _await_lease(record: ReplicaRecord, now_ms: int) -> Step:
    """Before a start was prepared, or before what was prepared was launched."""
    if record.state is not ReplicaState.STARTING or record.ready_since_ms is not None:
        return Step(record)
    nothing_runs = attrs.evolve(record, launched=False)
    return Step(enter(nothing_runs, ReplicaState.AWAITING_LEASE, now_ms, None))


def _cut_off(record: ReplicaRecord, now_ms: int, rules: ReplicaRules, jitter_per_mille: int) -> Step:
    """What runs ends, without a drain: nobody has been granted it since the lease lapsed. What is wanted afterwards
    is asked then."""
    if not record.launched or record.state is ReplicaState.STOPPING:
        return Step(record)
    if record.ending is not Ending.ABSENT:
        record = attrs.evolve(record, exit=ExitReason(kind="cut_off"), ending=Ending.AWAIT_LEASE)
    assert record.ending is not None
    return stop(record, record.ending, now_ms, rules, jitter_per_mille)
