"""What the store of a fleet that is over says: each function tells what is wrong with it, or nothing."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import attrs

from lunanexa_apps.controller.rows import from_row
from lunanexa_core.binding import frees_key
from lunanexa_core.events import ReplicaChanged, WorkloadAdmitted
from lunanexa_core.ids import StartId
from lunanexa_core.journal import Head, Row
from lunanexa_core.state_digest import state_digest
from lunanexa_ports.journal import JournalReader
from lunanexa_simulation.client import Answer
from lunanexa_simulation.invariants.books import one_receipt
from lunanexa_simulation.invariants.store import chains_verify
from lunanexa_simulation.sight import Sight


@attrs.frozen
class Told:
    """What the controller said of its state while it lived: its digest after this row."""

    sequence: int
    digest: str


@attrs.define
class Books:
    """All rows, read as the product reads them. ``reached``: the digests of the states at the rows that it told of."""

    rows: Sequence[Row]
    head: Head
    sight: Sight
    reached: Mapping[int, str]


async def read_books(journal: JournalReader, told: Iterable[Told]) -> Books:
    """Reads the store to its end. Nobody writes it any more."""
    head, rows = await journal.head(), [row async for row in journal.read()]
    return keep_books(rows, head, told)


def keep_books(rows: Sequence[Row], head: Head, told: Iterable[Told]) -> Books:
    """Replays the rows from nothing, each in its chain."""
    sight, due, reached = Sight(rows=rows), {one.sequence for one in told}, {}
    for row in rows:
        sight.shadow.feed((row,))
        if row.sequence in due and sight.shadow.fault is None:
            reached[row.sequence] = state_digest(sight.shadow.replay.state)
    return Books(rows, head, sight, reached)


def chain_fault(books: Books) -> str | None:
    """Each row stands in its chain, and the last one is where the head is."""
    broken = chains_verify(books.sight)
    ended = attrs.evolve(books.sight.shadow.replay.head, epoch=books.head.epoch)
    if broken is None and ended != books.head:
        return f"the rows end at {ended.sequence}, the head stands at {books.head.sequence}"
    return broken


def replay_fault(books: Books, told: Iterable[Told]) -> str | None:
    """The rows make every state that the controller said it had."""
    wrong = [one.sequence for one in told if books.reached.get(one.sequence) != one.digest]
    return f"at rows {wrong} the rows make another state than the controller said" if wrong else None


def receipt_fault(books: Books) -> str | None:
    """Each admitted workload has one receipt, of two attempts at most, one of which counts; nothing is open or held."""
    state = books.sight.shadow.replay.state
    if books.sight.shadow.open:
        return f"{sorted(books.sight.shadow.open)} were admitted and have no receipt"
    held = {name: count for name, count in state.open_of_key.items() if count}
    return one_receipt(books.sight) or (f"keys hold {held}" if held else None)


def acknowledged_fault(books: Books, whole: Iterable[Answer]) -> str | None:
    """Every answer that was given whole is booked as one that was."""
    receipts = books.sight.shadow.receipts
    outcomes = {str(name): [one.settlement.outcome for one in found] for name, found in receipts.items()}
    lost = sorted({str(answer.workload) for answer in whole if outcomes.get(str(answer.workload)) != [None]})
    return f"{lost} were answered and are not booked so" if lost else None


def repeated_fault(books: Books) -> str | None:
    """Of all workloads of an idempotency key the last one alone may bind it."""
    of_key: dict[str, list[bool]] = defaultdict(list)
    for event in map(from_row, books.rows):
        if isinstance(event, WorkloadAdmitted) and event.request.idempotency is not None:
            receipts = books.sight.shadow.receipts.get(event.request.workload, [])
            of_key[event.request.idempotency] += [not frees_key(receipt.settlement) for receipt in receipts]
    twice = [key for key, binds in of_key.items() if any(binds[:-1])]
    return f"{len(twice)} idempotency keys ran something twice" if twice else None


def starts_fault(books: Books, expected: Mapping[str, int]) -> str | None:
    """Each node's engine was started once, and once more for each of its kills: none ended by itself."""
    starts: set[tuple[str, StartId]] = set()
    for event in map(from_row, books.rows):
        if isinstance(event, ReplicaChanged):
            starts.add((event.node, event.report.start))
    found = Counter(node for node, _ in starts)
    wrong = {node: f"{found[node]}, not {count}" for node, count in expected.items() if found[node] != count}
    return f"starts of engines: {wrong}" if wrong else None
