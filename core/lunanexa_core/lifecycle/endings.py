"""How a replica leaves a state: by a deadline, a stop, a kill, or because nothing of its start is left."""

import attrs

from lunanexa_core.lifecycle.backoff import backoff_ms
from lunanexa_core.lifecycle.observations import Action, Step
from lunanexa_core.lifecycle.record import Ending, ReplicaRecord, ReplicaRules
from lunanexa_core.southbound.heartbeat import ExitReason, IdentityGrade, ReplicaState


def enter(record: ReplicaRecord, state: ReplicaState, now_ms: int, timeout_ms: int | None) -> ReplicaRecord:
    """The record in another state, which ends after ``timeout_ms`` at the latest."""
    deadline_ms = None if timeout_ms is None else now_ms + timeout_ms
    grade = record.grade if state in (ReplicaState.READY, ReplicaState.DRAINING) else IdentityGrade.NONE
    return attrs.evolve(record, state=state, since_ms=now_ms, deadline_ms=deadline_ms, grade=grade)


def fail(record: ReplicaRecord, kind: str, now_ms: int, rules: ReplicaRules, jitter_per_mille: int) -> Step:
    """This start is given up: no grace for what did not serve."""
    record = attrs.evolve(record, exit=ExitReason(kind=kind), ending=Ending.RESTART)
    return kill(record, now_ms, rules) if record.launched else gone(record, now_ms, rules, jitter_per_mille)


def stop(record: ReplicaRecord, ending: Ending, now_ms: int, rules: ReplicaRules, jitter_per_mille: int) -> Step:
    """SIGTERM and its grace; ``ending`` follows once the group is gone."""
    record = attrs.evolve(record, ending=ending, terminations=1)
    if not record.launched:
        return gone(record, now_ms, rules, jitter_per_mille)
    grace_ms = rules.stop_timeout_ms // 2 if rules.second_terminate else rules.stop_timeout_ms
    return Step(enter(record, ReplicaState.STOPPING, now_ms, grace_ms), (Action.TERMINATE,))


def press(record: ReplicaRecord, now_ms: int, rules: ReplicaRules) -> Step:
    """The grace is over: a second SIGTERM for engines that want two, else SIGKILL."""
    if rules.second_terminate and record.terminations == 1 and record.kills == 0:
        grace_ms = rules.stop_timeout_ms - rules.stop_timeout_ms // 2
        again = attrs.evolve(record, terminations=2, deadline_ms=now_ms + grace_ms)
        return Step(again, (Action.TERMINATE,))
    return kill(record, now_ms, rules)


def kill(record: ReplicaRecord, now_ms: int, rules: ReplicaRules) -> Step:
    """SIGKILL, again and again until the group is gone: a process in the kernel's hands dies when they open."""
    record = attrs.evolve(record, kills=record.kills + 1)
    return Step(enter(record, ReplicaState.STOPPING, now_ms, rules.kill_repeat_ms), (Action.KILL,))


def gone(record: ReplicaRecord, now_ms: int, rules: ReplicaRules, jitter_per_mille: int) -> Step:
    """Nothing of the start is left: the end, the next start, or no more of them."""
    if record.ending is Ending.ABSENT:
        return absent(record, now_ms)
    if record.ending is Ending.AWAIT_LEASE:
        # Its node's silence is no fault of the engine.
        waiting = attrs.evolve(record, launched=False, ending=None)
        return Step(enter(waiting, ReplicaState.AWAITING_LEASE, now_ms, None), (Action.FORGET,))
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
        return Step(enter(record, ReplicaState.FAILED, now_ms, None), (Action.FORGET,))
    delay_ms = backoff_ms(record.restarts, jitter_per_mille)
    return Step(enter(record, ReplicaState.BACKOFF, now_ms, delay_ms), (Action.FORGET,))


def absent(record: ReplicaRecord, now_ms: int) -> Step:
    """The end: nothing of the replica is left."""
    record = attrs.evolve(record, launched=False)
    return Step(enter(record, ReplicaState.ABSENT, now_ms, None), (Action.FORGET,))
