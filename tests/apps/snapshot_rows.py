"""Rows of a small service, as its kernel would have written them, on a simulated disk."""

from collections.abc import Sequence

from lunanexa_apps.controller.replay import Replay
from lunanexa_apps.controller.rows import to_row
from lunanexa_core.admission.settle import settled_as
from lunanexa_core.events import Event, KeyCreated, WorkloadAdmitted, WorkloadSettled
from lunanexa_core.ids import KeyId
from lunanexa_core.journal import Head, Row
from lunanexa_core.outcomes import Outcome
from lunanexa_core.workload import Attempt, Settlement, Usage
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.journal import JournalState
from tests.core import builders

LIMITED = builders.api_key(key=KeyId("key_2"), digest="cd" * 32, requests_per_minute=9, tokens_per_minute=99_999)


def begun() -> list[Event]:
    """A cluster that serves, with two keys."""
    return [*builders.serving_events(), KeyCreated(LIMITED)]


def admitted(number: int, *, idempotent: bool = False, limited: bool = False) -> WorkloadAdmitted:
    key = LIMITED if limited else builders.api_key()
    bound = {"idempotency": f"{number:064x}", "binding": "ab" * 32, "retain_ms": 5} if idempotent else {}
    return WorkloadAdmitted(
        request=builders.request(number, **bound), key=key.key, tenant=key.tenant, deployment=builders.DEPLOYMENT
    )


def settled(admission: WorkloadAdmitted, outcome: Outcome | None = None) -> WorkloadSettled:
    settlement = Settlement(
        workload=admission.request.workload,
        outcome=outcome,
        usage=Usage(input_tokens=3, output_tokens=4),
        attempts=(Attempt(start=builders.START, status=200),),
    )
    return settled_as(admission, settlement)


def served(count: int) -> list[Event]:
    """So many workloads, one after another, the last of them open."""
    numbers = range(1, count + 1)
    admissions = [admitted(number, idempotent=number % 2 == 0, limited=number % 3 == 0) for number in numbers]
    events: list[Event] = [event for one in admissions for event in (one, settled(one))]
    return [*begun(), *events[:-1]]


def rows_of(events: Sequence[Event], head: Head | None = None, *, ms: int = 7) -> list[Row]:
    head, rows = head or Head(), []
    for event in events:
        wall_ms = builders.NOW.wall_ms + head.sequence * ms
        rows.append(to_row(head, event, epoch=1, wall_ms=wall_ms, actor="test"))
        head = head.after(rows[-1])
    return rows


def replayed(rows: Sequence[Row]) -> Replay:
    replay = Replay()
    for row in rows:
        replay.feed(row)
    return replay


def put(disk: SimulatedDisk, rows: Sequence[Row]) -> None:
    """Makes ``rows`` all that the journal on ``disk`` holds."""
    journal = disk.state(JournalState)
    journal.rows[:] = rows
    journal.head = Head()
    for row in rows:
        journal.head = journal.head.after(row)
