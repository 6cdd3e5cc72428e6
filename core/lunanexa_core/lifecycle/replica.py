"""The machine of one replica: what was seen and what time it is, to what is to be done.

Three rules shape it. Each state but AwaitingLease, Ready, Failed and Absent has a deadline, and ends with a reason.
An exit that nobody asked for is a crash, whatever its code. A stop is finished when the process group is
gone: only then may the next start be prepared, so that one assignment never has two.
"""

from typing import assert_never

import attrs

from lunanexa_core.drivers.driver import Health
from lunanexa_core.ids import StartId
from lunanexa_core.lifecycle.backoff import backoff_ms
from lunanexa_core.lifecycle.endings import absent, enter, fail, gone, kill, press, stop
from lunanexa_core.lifecycle.leases import lease_step, prepare
from lunanexa_core.lifecycle.memory import available_now, fits, never_fits, over_limit, waited_in_vain
from lunanexa_core.lifecycle.observations import (
    Action,
    CutOff,
    Exited,
    GroupGone,
    LaunchFailed,
    LeaseAwaited,
    LeaseGranted,
    MemorySeen,
    NotPrepared,
    Observation,
    Prepared,
    Probed,
    Refused,
    Step,
    StopAsked,
    Tick,
)
from lunanexa_core.lifecycle.record import Ending, ReplicaRecord, ReplicaRules
from lunanexa_core.southbound.documents import DesiredAssignment
from lunanexa_core.southbound.heartbeat import EngineReadings, ExitReason, IdentityGrade, ReplicaState


def new_replica(assignment: DesiredAssignment, now_ms: int) -> ReplicaRecord:
    """A replica whose first start is due at once."""
    return ReplicaRecord(assignment=assignment, state=ReplicaState.BACKOFF, since_ms=now_ms, deadline_ms=now_ms)


def next_wake_ms(record: ReplicaRecord, rules: ReplicaRules) -> int | None:
    """When a :class:`Tick` is due at the latest."""
    if record.state is ReplicaState.READY and record.restarts and record.ready_since_ms is not None:
        return record.ready_since_ms + rules.fresh_budget_ms
    return record.deadline_ms


def step(
    record: ReplicaRecord, observation: Observation, now_ms: int, rules: ReplicaRules, jitter_per_mille: int
) -> Step:
    """One observation. What belongs to an earlier start, or does not fit the state, changes nothing."""
    match observation:
        case Tick():
            return _tick(record, now_ms, rules, jitter_per_mille)
        case StopAsked():
            return _stop_asked(record, observation, now_ms, rules)
        case Prepared():
            return _prepared(record, observation, now_ms, rules)
        case NotPrepared():
            waiting = enter(record, ReplicaState.BACKOFF, now_ms, rules.prepare_retry_ms)
            return Step(waiting if _preparing(record) else record)
        case LeaseAwaited() | LeaseGranted() | CutOff():
            return lease_step(record, observation, now_ms, rules, jitter_per_mille)
        case Refused():
            return _refused(record, observation, now_ms)
        case MemorySeen():
            return _memory_seen(record, observation, now_ms, rules)
        case LaunchFailed():
            return _launch_failed(record, observation, now_ms, rules, jitter_per_mille)
        case Exited():
            return _exited(record, observation, now_ms, rules)
        case GroupGone(start=start):
            return gone(record, now_ms, rules, jitter_per_mille) if _running(record, start) else Step(record)
        case Probed():
            return _probed(record, observation, now_ms, rules, jitter_per_mille)
        case _:
            assert_never(observation)


def recover(
    record: ReplicaRecord, *, alive: bool, recorded: bool, now_ms: int, rules: ReplicaRules, jitter_per_mille: int
) -> Step:
    """What a new agent makes of a replica that an earlier one left. ``alive``: something of its start runs,
    proven; ``recorded``: the start has come as far as a record of its own."""
    record = record.durable()
    match record.state:
        case ReplicaState.ABSENT:
            return Step(record, (Action.FORGET,))
        case ReplicaState.FAILED:
            return Step(attrs.evolve(record, since_ms=now_ms))
        case ReplicaState.BACKOFF | ReplicaState.AWAITING_LEASE | ReplicaState.AWAITING_MEMORY:
            delay_ms = backoff_ms(record.restarts, jitter_per_mille) if record.restarts else 0
            return Step(enter(record, ReplicaState.BACKOFF, now_ms, delay_ms))
        case ReplicaState.STARTING | ReplicaState.READY | ReplicaState.DRAINING | ReplicaState.STOPPING:
            return _recover_started(record, alive, recorded, now_ms, rules, jitter_per_mille)
        case _:
            assert_never(record.state)


def _recover_started(
    record: ReplicaRecord, alive: bool, recorded: bool, now_ms: int, rules: ReplicaRules, jitter_per_mille: int
) -> Step:
    if record.start is None or (record.launched and not alive and not recorded and record.ending is None):
        # Nothing was started yet, so that nothing has failed.
        return Step(enter(attrs.evolve(record, launched=False), ReplicaState.BACKOFF, now_ms, 0))
    if record.launched and not alive:
        return gone(record, now_ms, rules, jitter_per_mille)
    if record.ending is not None:
        return stop(record, record.ending, now_ms, rules, jitter_per_mille)
    served = attrs.evolve(record, ready_since_ms=now_ms) if record.state is ReplicaState.READY else record
    return Step(enter(served, ReplicaState.STARTING, now_ms, rules.start_timeout_ms))


def _preparing(record: ReplicaRecord) -> bool:
    return record.state is ReplicaState.STARTING and record.start is None


def _running(record: ReplicaRecord, start: StartId) -> bool:
    return record.launched and record.start == start


def _serves(record: ReplicaRecord) -> bool:
    """Whether it may have requests: also what served the agent before this one, which has not seen it ready yet."""
    found = record.state is ReplicaState.STARTING and record.ready_since_ms is not None
    return record.state is ReplicaState.READY or (found and record.unhealthy_since_ms is None)


def _tick(record: ReplicaRecord, now_ms: int, rules: ReplicaRules, jitter_per_mille: int) -> Step:
    due_ms = next_wake_ms(record, rules)
    if due_ms is None or now_ms < due_ms:
        return Step(record)
    match record.state:
        case ReplicaState.BACKOFF:
            return prepare(record, now_ms, rules)
        case ReplicaState.AWAITING_MEMORY:
            exit_reason = waited_in_vain(rules, record.available_mib)
            given_up = attrs.evolve(record, exit=exit_reason, ending=Ending.RESTART)
            return gone(given_up, now_ms, rules, jitter_per_mille)
        case ReplicaState.STARTING:
            kind = "start_timeout" if record.ready_since_ms is None else "unhealthy"
            return fail(record, kind, now_ms, rules, jitter_per_mille)
        case ReplicaState.READY:
            return Step(attrs.evolve(record, restarts=0))
        case ReplicaState.DRAINING:
            return stop(record, record.ending or Ending.ABSENT, now_ms, rules, jitter_per_mille)
        case ReplicaState.STOPPING:
            return press(record, now_ms, rules)
        case ReplicaState.AWAITING_LEASE | ReplicaState.FAILED | ReplicaState.ABSENT:
            return Step(record)
        case _:
            assert_never(record.state)


def _stop_asked(record: ReplicaRecord, asked: StopAsked, now_ms: int, rules: ReplicaRules) -> Step:
    record = attrs.evolve(record, ending=Ending.ABSENT)
    if not record.launched:
        # Nothing of ours runs: an adopted engine goes on, and so do the requests in it.
        return absent(record, now_ms)
    if asked.hurry:
        return kill(record, now_ms, rules)
    drain_ms = rules.drain_ms if asked.drain_ms is None else asked.drain_ms
    match record.state:
        case ReplicaState.READY:
            return Step(enter(record, ReplicaState.DRAINING, now_ms, drain_ms))
        case ReplicaState.DRAINING:
            deadline_ms = now_ms + drain_ms
            return Step(attrs.evolve(record, deadline_ms=min(record.deadline_ms or deadline_ms, deadline_ms)))
        case ReplicaState.STARTING if _serves(record):
            return Step(enter(record, ReplicaState.DRAINING, now_ms, drain_ms))
        case ReplicaState.STARTING:
            return stop(record, Ending.ABSENT, now_ms, rules, 0)
        case _:
            return Step(record)


def _prepared(record: ReplicaRecord, prepared: Prepared, now_ms: int, rules: ReplicaRules) -> Step:
    if not _preparing(record):
        return Step(record)
    record = attrs.evolve(
        record,
        start=prepared.start,
        last_start=prepared.start,
        host=prepared.host,
        port=prepared.port,
    )
    if rules.adopted:
        return Step(enter(record, ReplicaState.STARTING, now_ms, rules.start_timeout_ms))
    waiting = enter(record, ReplicaState.AWAITING_MEMORY, now_ms, rules.memory_wait_ms)
    return _memory_seen(waiting, prepared.memory, now_ms, rules)


def _memory_seen(record: ReplicaRecord, seen: MemorySeen, now_ms: int, rules: ReplicaRules) -> Step:
    """A start that waits goes on once there is room, and is given up at once where there never will be."""
    if record.state is not ReplicaState.AWAITING_MEMORY:
        return Step(record)
    hopeless = never_fits(rules, seen)
    if hopeless is not None:
        return Step(enter(attrs.evolve(record, exit=hopeless), ReplicaState.FAILED, now_ms, None))
    available_mib = available_now(seen, record.available_mib)
    if not fits(rules, available_mib):
        return Step(attrs.evolve(record, available_mib=available_mib))
    launched = attrs.evolve(record, launched=True, available_mib=None)
    return Step(enter(launched, ReplicaState.STARTING, now_ms, rules.start_timeout_ms), (Action.SPAWN,))


def _refused(record: ReplicaRecord, refused: Refused, now_ms: int) -> Step:
    if not _preparing(record):
        return Step(record)
    reason = ExitReason(kind="refused", last_lines=(refused.detail,))
    record = attrs.evolve(record, start=refused.start, last_start=refused.start, exit=reason)
    return Step(enter(record, ReplicaState.FAILED, now_ms, None))


def _launch_failed(
    record: ReplicaRecord, failed: LaunchFailed, now_ms: int, rules: ReplicaRules, jitter_per_mille: int
) -> Step:
    if not _running(record, failed.start):
        return Step(record)
    reason = ExitReason(kind="spawn_failed", last_lines=(failed.detail,))
    record = attrs.evolve(record, exit=reason, ending=record.ending or Ending.RESTART)
    return gone(record, now_ms, rules, jitter_per_mille)


def _exited(record: ReplicaRecord, exited: Exited, now_ms: int, rules: ReplicaRules) -> Step:
    if not _running(record, exited.start):
        return Step(record)
    reason = exited.reason
    if record.exit is not None and record.ending in (Ending.RESTART, Ending.AWAIT_LEASE):
        # Why it had to end is told once; how it ended is added.
        reason = attrs.evolve(reason, kind=record.exit.kind, detail=record.exit.detail)
    if record.state is ReplicaState.STOPPING:
        return Step(attrs.evolve(record, exit=reason))
    ending = record.ending or Ending.RESTART
    return kill(attrs.evolve(record, exit=reason, ending=ending), now_ms, rules)


def _probed(record: ReplicaRecord, probed: Probed, now_ms: int, rules: ReplicaRules, jitter_per_mille: int) -> Step:
    if record.start != probed.start:
        return Step(record)
    well = probed.health is Health.READY and probed.grade is not IdentityGrade.NONE and not probed.wrong
    over = over_limit(rules, probed.resident_mib)
    match record.state:
        case ReplicaState.STARTING | ReplicaState.READY if probed.wrong:
            return fail(record, "wrong_identity", now_ms, rules, jitter_per_mille)
        case ReplicaState.STARTING | ReplicaState.READY if over is not None:
            return _shed(record, over, now_ms, rules)
        case ReplicaState.STARTING if well:
            since_ms = now_ms if record.ready_since_ms is None else record.ready_since_ms
            ready = attrs.evolve(record, ready_since_ms=since_ms, unhealthy_since_ms=None, grade=probed.grade)
            return Step(enter(ready, ReplicaState.READY, now_ms, None))
        case ReplicaState.READY if well:
            return Step(attrs.evolve(record, unhealthy_since_ms=None, grade=probed.grade))
        case ReplicaState.READY if record.unhealthy_since_ms is None:
            # One lost probe is no news; it takes two to stop being offered requests.
            return Step(attrs.evolve(record, unhealthy_since_ms=now_ms))
        case ReplicaState.READY:
            spent_ms = now_ms - (record.unhealthy_since_ms or now_ms)
            return Step(enter(record, ReplicaState.STARTING, now_ms, max(0, rules.unhealthy_ms - spent_ms)))
        case ReplicaState.DRAINING if _idle(probed.readings) and now_ms - record.since_ms >= rules.drain_quiet_ms:
            return stop(record, record.ending or Ending.ABSENT, now_ms, rules, jitter_per_mille)
        case _:
            return Step(record)


def _shed(record: ReplicaRecord, reason: ExitReason, now_ms: int, rules: ReplicaRules) -> Step:
    """An engine that holds too much goes: what serves finishes its requests first."""
    serves = _serves(record)
    record = attrs.evolve(record, exit=reason, ending=Ending.RESTART)
    if serves:
        return Step(enter(record, ReplicaState.DRAINING, now_ms, rules.drain_ms))
    return kill(record, now_ms, rules)


def _idle(readings: EngineReadings) -> bool:
    return readings.running == 0 and readings.waiting == 0
