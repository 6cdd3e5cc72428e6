"""Rows and what was made of them, as people read them."""

import json
from datetime import UTC, datetime

from lunanexa_apps.cli.journal_verify import Verifier
from lunanexa_apps.cli.tools import printable
from lunanexa_apps.journal_rows import record_of
from lunanexa_core.journal import GENESIS, Chain, Row


def row_line(row: Row) -> str:
    """One row on one line."""
    actor = record_of(row).get("actor", "-")
    words = (f"{row.sequence:>8}", wall_time(row.wall_ms), f"{row.chain.value:7}", f"{row.action:21}", row.target)
    return printable(f"{'  '.join(words)}  by {actor}")


def row_page(row: Row) -> str:
    """One row, all of it."""
    record = record_of(row)
    told = {
        "sequence": str(row.sequence),
        "time": wall_time(row.wall_ms),
        "chain": row.chain.value,
        "epoch": str(row.epoch),
        "actor": str(record.get("actor", "-")),
        "action": f"{row.action} (version {record.get('version', '-')})",
        "target": row.target,
        "hash": row.hash,
        "previous": row.previous if row.previous != GENESIS else f"none: the first of the {row.chain.value}",
    }
    lines = [f"{name:8}  {value}" for name, value in told.items()]
    body = json.dumps(record.get("body"), indent=2, ensure_ascii=False)
    return printable("\n".join([*lines, "", body]))


def verifier_page(verifier: Verifier) -> str:
    """What a verification found."""
    head = verifier.head
    by_chain = ", ".join(f"{verifier.rows[chain]:,} {chain.value}" for chain in Chain)
    lines = [
        f"rows     {verifier.rows.total():,} ({by_chain})",
        f"epochs   {verifier.epochs:,}, the last {head.epoch}",
    ]
    if verifier.after is not None:
        lines.append(f"after    {verifier.after.sequence:,}, ledger {verifier.after.ledger}")
    if verifier.point is not None:
        pruning = verifier.pruning
        rows = "" if pruning is None else f" ({pruning.count:,} rows)"
        lines.append(f"pruned   the ledger up to {verifier.point.until:,}{rows}, as row {verifier.point.sequence} says")
        if pruning is not None and pruning.archive is not None:
            lines.append(f"archive  {pruning.archive.name} has the last of them")
    if verifier.first_wall_ms is not None and verifier.last_wall_ms is not None:
        lines.append(f"from     {wall_time(verifier.first_wall_ms)} to {wall_time(verifier.last_wall_ms)}")
    return "\n".join([*lines, f"journal  {head.journal}", f"ledger   {head.ledger}"])


def wall_time(wall_ms: int) -> str:
    """Wall time of a row, to the millisecond."""
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")[:23] + "Z"
    except (ValueError, OverflowError, OSError):
        return f"{wall_ms} ms"
