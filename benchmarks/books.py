"""What the journal of an installation says of its requests, read beside the controller that writes it."""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs

from lunanexa_core.journal import Chain, Head, Row, check_row


@attrs.define
class Books:
    """Receipts by workload, as they stand in the ledger."""

    rows: int = 0
    admitted: Counter[str] = attrs.Factory(Counter)
    receipts: dict[str, list[dict[str, Any]]] = attrs.Factory(dict)
    damage: str | None = None

    def faults(self) -> list[str]:
        """What contradicts one receipt for each request that was admitted."""
        found = [] if self.damage is None else [self.damage]
        found += [f"{workload} was admitted {count} times" for workload, count in self.admitted.items() if count > 1]
        without = self.admitted.keys() - self.receipts.keys()
        if without:
            found.append(f"{len(without)} requests were admitted and have no receipt")
        found += [f"{name} has a receipt and was not admitted" for name in self.receipts.keys() - self.admitted.keys()]
        found += [f"{name} has {len(told)} receipts" for name, told in self.receipts.items() if len(told) > 1]
        return found

    def states(self) -> Counter[str]:
        """How often a request ended in which way."""
        return Counter(
            receipt["settlement"]["outcome"] or "succeeded" for told in self.receipts.values() for receipt in told
        )

    def departures(self) -> Counter[str]:
        """In which phase the clients left that did, as the usage of their receipts tells it."""
        settlements = (receipt["settlement"] for told in self.receipts.values() for receipt in told)
        return Counter(_phase(one["usage"]) for one in settlements if one["outcome"] == "cancelled_by_caller")


def _phase(usage: dict[str, Any]) -> str:
    if not usage["input_tokens"]:
        return "in the queue"
    return "within the answer" if usage["output_tokens"] else "before the first byte"


def read_books(store: Path) -> Books:
    """The whole journal, each row verified in its chain."""
    books, head = Books(), Head()
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        for row in _rows(connection):
            fault = check_row(head, row)
            if fault is not None and books.damage is None:
                books.damage = f"row {row.sequence}: {fault.value}"
            head = head.after(row)
            books.rows += 1
            if row.action == "workload.admitted":
                books.admitted[row.target] += 1
            elif row.action == "workload.settled":
                books.receipts.setdefault(row.target, []).append(json.loads(row.record)["body"]["receipt"])
    return books


def _rows(connection: sqlite3.Connection) -> Iterator[Row]:
    columns = "sequence, chain, epoch, wall_ms, action, target, record, previous, hash"
    for sequence, chain, epoch, wall_ms, action, target, record, previous, digest in connection.execute(
        f"SELECT {columns} FROM row ORDER BY sequence"
    ):
        yield Row(
            sequence=sequence,
            chain=Chain(chain),
            epoch=epoch,
            wall_ms=wall_ms,
            action=action,
            target=target,
            record=record,
            previous=previous,
            hash=digest,
        )
