"""Exported journals: JSON lines, the first naming the form, then a row each, the last telling where they end."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import aclosing, contextmanager
from typing import IO, Final

from lunanexa_apps.cli.journal_source import Source, rows_until
from lunanexa_apps.cli.journal_verify import Verifier
from lunanexa_apps.codec import CodecError, structure, unstructure
from lunanexa_apps.journal_rows import row_document, row_of_document
from lunanexa_core.canonical import JsonValue, NotCanonical, canonical_json, strict_json
from lunanexa_core.contract.journal import HeadDocument
from lunanexa_core.journal import Head

FORMAT: Final = "lunanexa.journal.v1"


@contextmanager
def new_export(path: str) -> Iterator[IO[bytes]]:
    """A new file that only its owner may read; it is removed again when the block fails. Raises ``OSError``, also when
    there is such a file already."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(path)
        raise


async def export_rows(source: Source, file: IO[bytes], until: int | None) -> Verifier:
    """Writes rows up to ``until``, or all, each verified: what follows a bad one is not written. A file that ends
    without its last line is not whole."""
    verifier, told = Verifier(), await source.head()
    total = told.sequence if until is None else min(until, told.sequence)
    file.write(_line({"format": FORMAT}))
    async with aclosing(rows_until(source, total)) as rows:
        async for row in rows:
            if not verifier.feed(row, total):
                return verifier
            file.write(_line(row_document(row)))
    head = verifier.head
    if total == told.sequence:
        verifier.end(told)
    if verifier.problem is None:
        end = HeadDocument(sequence=head.sequence, epoch=head.epoch, journal=head.journal, ledger=head.ledger)
        file.write(_line({"end": unstructure(end)}))
    return verifier


def verify_file(lines: Iterable[bytes]) -> Verifier:
    """Verifies an exported journal."""
    verifier, whole = Verifier(), False
    for number, line in enumerate(lines, 1):
        try:
            document: JsonValue = strict_json(line)
        except NotCanonical as error:
            verifier.problem = f"line {number}: {error}"
            return verifier
        if whole or not isinstance(document, dict) or (number == 1) != (document == {"format": FORMAT}):
            verifier.problem = f"line {number}: not an exported journal of ours"
            return verifier
        if number == 1:
            continue
        try:
            if "end" in document:
                told, whole = structure(HeadDocument, document["end"]), True
                verifier.end(Head(sequence=told.sequence, epoch=told.epoch, journal=told.journal, ledger=told.ledger))
            elif not verifier.feed(row_of_document(document)):
                return verifier
        except CodecError as error:
            verifier.problem = f"line {number}: {error}"
            return verifier
    if not whole and verifier.problem is None:
        verifier.problem = f"the file ends after row {verifier.head.sequence} without its last line: it is not whole"
    return verifier


def _line(document: JsonValue) -> bytes:
    # Canonical, so that two exports of the same rows are the same file.
    return canonical_json(document) + b"\n"


def json_line(document: JsonValue) -> str:
    """One document on a line of its own."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
