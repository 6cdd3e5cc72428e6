"""The machine of one replica: what was seen and what time it is, to what is to be done.

Three rules shape it. Each state but Ready, Failed and Absent has a deadline, and ends with a reason.
An exit that nobody asked for is a crash, whatever its code. A stop is finished when the process group is
gone: only then may the next start be prepared, so that one assignment never has two.
"""

from typing import assert_never

import attrs

from lunanexa_core.drivers.driver import Health
from lunanexa_core.ids import StartId
from lunanexa_core.lifecycle.backoff import backoff_ms
from lunanexa_core.lifecycle.observations import (
    Action,
    Exited,
    GroupGone,
    LaunchFailed,
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
            waiting = _enter(record, ReplicaState.BACKOFF, now_ms, rules.prepare_retry_ms)
            return Step(waiting if _preparing(record) else record)
        case Refused():
            return _refused(record, observation, now_ms)
        case LaunchFailed():
            return _launch_failed(record, observation, now_ms, rules, jitter_per_mille)
        case Exited():
            return _exited(record, observation, now_ms, rules)
        case GroupGone(start=start):
            return _gone(record, now_ms, rules, jitter_per_mille) if _running(record, start) else Step(record)
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
        case ReplicaState.BACKOFF:
            delay_ms = backoff_ms(record.restarts, jitter_per_mille) if record.restarts else 0
            return Step(_enter(record, ReplicaState.BACKOFF, now_ms, delay_ms))
        case ReplicaState.STARTING | ReplicaState.READY | ReplicaState.DRAINING | ReplicaState.STOPPING:
            return _recover_started(record, alive, recorded, now_ms, rules, jitter_per_mille)
        case _:
            assert_never(record.state)


def _recover_started(
    record: ReplicaRecord, alive: bool, recorded: bool, now_ms: int, rules: ReplicaRules, jitter_per_mille: int
) -> Step:
    if record.start is None or (record.launched and not alive and not recorded and record.ending is None):
        # Nothing was started yet, so that nothing has failed.
        return Step(_enter(attrs.evolve(record, launched=False), ReplicaState.BACKOFF, now_ms, 0))
    if record.launched and not alive:
        return _gone(record, now_ms, rules, jitter_per_mille)
    if record.ending is not None:
        return _stop(record, record.ending, now_ms, rules, jitter_per_mille)
    return Step(_enter(record, ReplicaState.STARTING, now_ms, rules.start_timeout_ms))


def _enter(record: ReplicaRecord, state: ReplicaState, now_ms: int, timeout_ms: int | None) -> ReplicaRecord:
    deadline_ms = None if timeout_ms is None else now_ms + timeout_ms
    grade = record.grade if state in (ReplicaState.READY, ReplicaState.DRAINING) else IdentityGrade.NONE
    return attrs.evolve(record, state=state, since_ms=now_ms, deadline_ms=deadline_ms, grade=grade)


def _preparing(record: ReplicaRecord) -> bool:
    return record.state is ReplicaState.STARTING and record.start is None


def _running(record: ReplicaRecord, start: StartId) -> bool:
    return record.launched and record.start == start


def _tick(record: ReplicaRecord, now_ms: int, rules: ReplicaRules, jitter_per_mille: int) -> Step:
    due_ms = next_wake_ms(record, rules)
    if due_ms is None or now_ms < due_ms:
        return Step(record)
    match record.state:
        case ReplicaState.BACKOFF:
            fresh = attrs.evolve(
                record, start=None, host=None, port=None, ready_since_ms=None, unhealthy_since_ms=None,
                kills=0, terminations=0,
            )  # fmt: skip
            return Step(_enter(fresh, ReplicaState.STARTING, now_ms, rules.start_timeout_ms), (Action.PREPARE,))
        case ReplicaState.STARTING:
            kind = "start_timeout" if record.ready_since_ms is None else "unhealthy"
            return _fail(record, kind, now_ms, rules, jitter_per_mille)
        case ReplicaState.READY:
            return Step(attrs.evolve(record, restarts=0))
        case ReplicaState.DRAINING:
            return _stop(record, Ending.ABSENT, now_ms, rules, jitter_per_mille)
        case ReplicaState.STOPPING:
            return _press(record, now_ms, rules)
        case ReplicaState.FAILED | ReplicaState.ABSENT:
            return Step(record)
        case _:
            assert_never(record.state)


def _stop_asked(record: ReplicaRecord, asked: StopAsked, now_ms: int, rules: ReplicaRules) -> Step:
    record = attrs.evolve(record, ending=Ending.ABSENT)
    if not record.launched:
        # Nothing of ours runs: an adopted engine goes on, and so do the requests in it.
        return _absent(record, now_ms)
    if asked.hurry:
        return _kill(record, now_ms, rules)
    drain_ms = rules.drain_ms if asked.drain_ms is None else asked.drain_ms
    match record.state:
        case ReplicaState.READY:
            return Step(_enter(record, ReplicaState.DRAINING, now_ms, drain_ms))
        case ReplicaState.DRAINING:
            deadline_ms = now_ms + drain_ms
            return Step(attrs.evolve(record, deadline_ms=min(record.deadline_ms or deadline_ms, deadline_ms)))
        case ReplicaState.STARTING:
            return _stop(record, Ending.ABSENT, now_ms, rules, 0)
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
        launched=not rules.adopted,
    )
    started = _enter(record, ReplicaState.STARTING, now_ms, rules.start_timeout_ms)
    return Step(started, () if rules.adopted else (Action.SPAWN,))


def _refused(record: ReplicaRecord, refused: Refused, now_ms: int) -> Step:
    if not _preparing(record):
        return Step(record)
    reason = ExitReason(kind="refused", last_lines=(refused.detail,))
    record = attrs.evolve(record, start=refused.start, last_start=refused.start, exit=reason)
    return Step(_enter(record, ReplicaState.FAILED, now_ms, None))


def _launch_failed(
    record: ReplicaRecord, failed: LaunchFailed, now_ms: int, rules: ReplicaRules, jitter_per_mille: int
) -> Step:
    if not _running(record, failed.start):
        return Step(record)
    reason = ExitReason(kind="spawn_failed", last_lines=(failed.detail,))
    record = attrs.evolve(record, exit=reason, ending=record.ending or Ending.RESTART)
    return _gone(record, now_ms, rules, jitter_per_mille)


def _exited(record: ReplicaRecord, exited: Exited, now_ms: int, rules: ReplicaRules) -> Step:
    if not _running(record, exited.start):
        return Step(record)
    reason = exited.reason
    if record.state is ReplicaState.STOPPING:
        # Why it had to end is told once; how it ended is added.
        kept = record.exit.kind if record.exit is not None and record.ending is Ending.RESTART else reason.kind
        return Step(attrs.evolve(record, exit=attrs.evolve(reason, kind=kept)))
    ending = record.ending or Ending.RESTART
    return _kill(attrs.evolve(record, exit=reason, ending=ending), now_ms, rules)


def _probed(record: ReplicaRecord, probed: Probed, now_ms: int, rules: ReplicaRules, jitter_per_mille: int) -> Step:
    if record.start != probed.start:
        return Step(record)
    well = probed.health is Health.READY and probed.grade is not IdentityGrade.NONE and not probed.wrong
    match record.state:
        case ReplicaState.STARTING | ReplicaState.READY if probed.wrong:
            return _fail(record, "wrong_identity", now_ms, rules, jitter_per_mille)
        case ReplicaState.STARTING if well:
            since_ms = now_ms if record.ready_since_ms is None else record.ready_since_ms
            ready = attrs.evolve(record, ready_since_ms=since_ms, unhealthy_since_ms=None, grade=probed.grade)
            return Step(_enter(ready, ReplicaState.READY, now_ms, None))
        case ReplicaState.READY if well:
            return Step(attrs.evolve(record, unhealthy_since_ms=None, grade=probed.grade))
        case ReplicaState.READY if record.unhealthy_since_ms is None:
            # One lost probe is no news; it takes two to stop being offered requests.
            return Step(attrs.evolve(record, unhealthy_since_ms=now_ms))
        case ReplicaState.READY:
            spent_ms = now_ms - (record.unhealthy_since_ms or now_ms)
            return Step(_enter(record, ReplicaState.STARTING, now_ms, max(0, rules.unhealthy_ms - spent_ms)))
        case ReplicaState.DRAINING if _idle(probed.readings) and now_ms - record.since_ms >= rules.drain_quiet_ms:
            return _stop(record, Ending.ABSENT, now_ms, rules, jitter_per_mille)
        case _:
            return Step(record)


def _idle(readings: EngineReadings) -> bool:
    return readings.running == 0 and readings.waiting == 0


def _fail(record: ReplicaRecord, kind: str, now_ms: int, rules: ReplicaRules, jitter_per_mille: int) -> Step:
    """This start is given up: no grace for what did not serve."""
    record = attrs.evolve(record, exit=ExitReason(kind=kind), ending=Ending.RESTART)
    return _kill(record, now_ms, rules) if record.launched else _gone(record, now_ms, rules, jitter_per_mille)


def _stop(record: ReplicaRecord, ending: Ending, now_ms: int, rules: ReplicaRules, jitter_per_mille: int) -> Step:
    record = attrs.evolve(record, ending=ending, terminations=1)
    if not record.launched:
        return _gone(record, now_ms, rules, jitter_per_mille)
    grace_ms = rules.stop_timeout_ms // 2 if rules.second_terminate else rules.stop_timeout_ms
    return Step(_enter(record, ReplicaState.STOPPING, now_ms, grace_ms), (Action.TERMINATE,))


def _press(record: ReplicaRecord, now_ms: int, rules: ReplicaRules) -> Step:
    if rules.second_terminate and record.terminations == 1 and record.kills == 0:
        grace_ms = rules.stop_timeout_ms - rules.stop_timeout_ms // 2
        again = attrs.evolve(record, terminations=2, deadline_ms=now_ms + grace_ms)
        return Step(again, (Action.TERMINATE,))
    return _kill(record, now_ms, rules)


def _kill(record: ReplicaRecord, now_ms: int, rules: ReplicaRules) -> Step:
    """SIGKILL, again and again until the group is gone: a process in the kernel's hands dies when they open."""
    record = attrs.evolve(record, kills=record.kills + 1)
    return Step(_enter(record, ReplicaState.STOPPING, now_ms, rules.kill_repeat_ms), (Action.KILL,))


def _gone(record: ReplicaRecord, now_ms: int, rules: ReplicaRules, jitter_per_mille: int) -> Step:
    """Nothing of the start is left: the end, the next start, or no more of them."""
    if record.ending is Ending.ABSENT:
        return _absent(record, now_ms)
    # Without an ending the reason that stands there is an earlier start's.
    reason = record.exit if record.ending is not None else None
    record = attrs.evolve(
        record,
        launched=False,
        ending=None,
        restarts=record.restarts + 1,
        exit=reason or ExitReason(kind="unobserved"),
    )
    if record.restarts > rules.restart_budget and not rules.adopted:
        return Step(_enter(record, ReplicaState.FAILED, now_ms, None), (Action.FORGET,))
    delay_ms = backoff_ms(record.restarts, jitter_per_mille)
    return Step(_enter(record, ReplicaState.BACKOFF, now_ms, delay_ms), (Action.FORGET,))


def _absent(record: ReplicaRecord, now_ms: int) -> Step:
    record = attrs.evolve(record, launched=False)
    return Step(_enter(record, ReplicaState.ABSENT, now_ms, None), (Action.FORGET,))
