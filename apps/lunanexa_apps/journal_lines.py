"""Rows as lines of JSON: of whole journals, which are exported, and of stretches of the ledger, which are archived.

The first line names the form and tells what the rows stand on, a row each follows, the last tells where they end: a
file without it is not whole. Lines are canonical, so that the same rows are the same file.
"""

from typing import Final

from lunanexa_apps.codec import unstructure
from lunanexa_apps.journal_rows import row_document
from lunanexa_core.canonical import JsonValue, canonical_json
from lunanexa_core.journal import Head, PrunePoint, Row

JOURNAL_FORMAT: Final = "lunanexa.journal.v1"
LEDGER_FORMAT: Final = "lunanexa.ledger.v1"


def journal_line(point: PrunePoint | None) -> bytes:
    """The first line of a journal; ``point``: where its ledger begins."""
    pruned = {} if point is None else {"pruned": unstructure(point)}
    return _line({"format": JOURNAL_FORMAT, **pruned})


def ledger_line(head: Head) -> bytes:
    """The first line of a stretch of the ledger that goes on from ``head``."""
    return _line({"format": LEDGER_FORMAT, "after": _place(head)})


def row_line(row: Row) -> bytes:
    """The line of a row. Raises :class:`~lunanexa_ports.errors.PortFault` for a record that is no text."""
    return _line(row_document(row))


def end_line(head: Head) -> bytes:
    """The last line."""
    return _line({"end": _place(head)})


def _place(head: Head) -> JsonValue:
    return {"sequence": head.sequence, "epoch": head.epoch, "journal": head.journal, "ledger": head.ledger}


def _line(document: JsonValue) -> bytes:
    return canonical_json(document) + b"\n"
