"""What group commit is worth: durable appends a second, row by row and in the kernel's batches.

Each append is one transaction and one sync of the disk, so that the rows of one batch share its cost.
The rounds of all batch sizes are interleaved, so that another load on the machine meets them alike; the
ratio is the result, the absolute figures belong to this machine. Every chain is verified afterwards.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import trio

from benchmarks.report import Options, Report
from lunanexa_adapters.sqlite.journal import SqliteJournal, open_sqlite_journal
from lunanexa_core.canonical import JsonValue
from lunanexa_core.journal import Chain, Head, Row, check_row, make_row
from lunanexa_ports.journal import Appended

BATCHES = (1, 8, 64)
# About what the record of an admitted workload holds.
BODY: Final[JsonValue] = {
    "alias": "tiny",
    "digest": "sha256:" + "0" * 64,
    "reserved_tokens": 1_024,
    "tenant": "t" * 26,
    "workload": "w" * 29,
}


def batch_after(head: Head, count: int) -> list[Row]:
    rows = []
    for _ in range(count):
        row = make_row(
            head,
            chain=Chain.LEDGER,
            epoch=head.epoch,
            wall_ms=1_800_000_000_000,
            actor="gateway",
            action="workload_admitted",
            version=1,
            target="wl_" + "0" * 26,
            body=BODY,
        )
        rows.append(row)
        head = head.after(row)
    return rows


async def one_round(journal: SqliteJournal, count: int, seconds: float) -> tuple[float, list[float]]:
    """Rows a second, and the milliseconds that each append took, encoding and hashing included."""
    head = await journal.head()
    latencies_ms: list[float] = []
    rows_written = 0
    began = time.perf_counter()
    while (started := time.perf_counter()) - began < seconds:
        rows = batch_after(head, count)
        outcome = await journal.append(head.epoch, head, rows)
        assert outcome is Appended.DURABLE, outcome
        for row in rows:
            head = head.after(row)
        rows_written += count
        latencies_ms.append((time.perf_counter() - started) * 1_000)
    return rows_written / (time.perf_counter() - began), latencies_ms


async def verify(journal: SqliteJournal) -> int:
    head = Head()
    async for row in journal.read():
        fault = check_row(head, row)
        assert fault is None, (row.sequence, fault)
        head = head.after(row)
    return head.sequence


def measure(options: Options) -> Report:
    """All batch sizes, in interleaved rounds."""
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        return trio.run(_measure, Path(name), options.seconds, options.rounds)


async def _measure(directory: Path, seconds: float, rounds: int) -> Report:
    speeds: dict[int, list[float]] = {count: [] for count in BATCHES}
    latencies_ms: dict[int, list[float]] = {count: [] for count in BATCHES}
    async with open_sqlite_journal(directory / "store.sqlite3") as journal:
        await journal.take_epoch()
        for _ in range(rounds):
            for count in BATCHES:
                speed, taken_ms = await one_round(journal, count, seconds)
                speeds[count].append(speed)
                latencies_ms[count].extend(taken_ms)
        verified = await verify(journal)
    alone = statistics.median(speeds[1])
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float] = {}
    for count in BATCHES:
        speed = statistics.median(speeds[count])
        percentiles = statistics.quantiles(latencies_ms[count], n=100)
        p50_ms, p99_ms = percentiles[49], percentiles[98]
        rows.append((str(count), f"{speed:,.0f}", f"x{speed / alone:.1f}", f"{p50_ms:.2f}", f"{p99_ms:.2f}"))
        figures |= {f"{count}: rows/s": speed, f"{count}: p50 ms": p50_ms, f"{count}: p99 ms": p99_ms}
    return Report(
        title="journal_group_commit: durable appends to the SQLite journal",
        columns=("rows an append", "rows/s", "ratio", "p50 ms", "p99 ms"),
        rows=tuple(rows),
        figures=figures,
        notes=(f"{verified:,} rows written, all verified.",),
    )
