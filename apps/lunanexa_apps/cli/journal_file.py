"""Exported journals: JSON lines, the first naming the form, then a row each, the last telling where they end."""

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import partial
from typing import IO, Final

import attrs

from lunanexa_apps.cli.journal_source import Source, by_pruning, check_end, rows_until
from lunanexa_apps.cli.journal_verify import Verifier
from lunanexa_apps.codec import CodecError, structure
from lunanexa_apps.controller.rows import Pruning
from lunanexa_apps.journal_lines import JOURNAL_FORMAT, LEDGER_FORMAT, end_line, journal_line, row_line
from lunanexa_apps.journal_rows import row_of_document
from lunanexa_core.canonical import JsonValue, NotCanonical, strict_json
from lunanexa_core.contract.journal import HeadDocument
from lunanexa_core.journal import Head, PrunePoint

_GZIP: Final = b"\x1f\x8b"
_NOT_OURS: Final = "not an exported journal of ours"


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
    without its last line is not whole. Raises :class:`~lunanexa_apps.cli.journal_source.TooEarly`."""
    work = partial(_export, source, file, until)
    return await by_pruning(source, work, lambda verifier: verifier.problem is not None)


async def _export(source: Source, file: IO[bytes], until: int | None, pruning: Pruning | None) -> Verifier:
    verifier = Verifier(point=None if pruning is None else pruning.point)
    told = await source.head()
    total = told.sequence if until is None else min(until, told.sequence)
    check_end(pruning, total)
    file.seek(0)
    file.truncate()
    file.write(journal_line(verifier.point))
    async with aclosing(rows_until(source, total)) as rows:
        async for row in rows:
            if not verifier.feed(row, total):
                return verifier
            file.write(row_line(row))
    verifier.end(told if total == told.sequence else attrs.evolve(verifier.head, sequence=total))
    if verifier.problem is None:
        file.write(end_line(verifier.head))
    return verifier


def verify_file(file: IO[bytes]) -> Verifier:
    """Verifies an exported journal, or an archived stretch of the ledger, also a compressed one."""
    compressed = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    if not compressed:
        return _verify_lines(file)
    try:
        with gzip.open(file) as lines:
            return _verify_lines(lines)
    except (OSError, EOFError, zlib.error) as error:
        return Verifier(problem=f"the file can't be unpacked: {error}")


def _verify_lines(lines: Iterable[bytes]) -> Verifier:
    verifier, whole = Verifier(), False
    for number, line in enumerate(lines, 1):
        try:
            document: JsonValue = strict_json(line)
        except NotCanonical as error:
            verifier.problem = f"line {number}: {_NOT_OURS if number == 1 else error}"
            return verifier
        if whole or not isinstance(document, dict) or (number == 1) != ("format" in document):
            verifier.problem = f"line {number}: {_NOT_OURS}"
            return verifier
        try:
            if number == 1:
                verifier = _begin(document)
            elif "end" in document:
                told, whole = structure(HeadDocument, document["end"]), True
                verifier.end(Head(sequence=told.sequence, epoch=told.epoch, journal=told.journal, ledger=told.ledger))
            elif not verifier.feed(row_of_document(document)):
                return verifier
        except CodecError as error:
            verifier.problem = f"line {number}: {error}"
        if verifier.problem is not None:
            return verifier
    if not whole and verifier.problem is None:
        verifier.problem = f"the file ends after row {verifier.head.sequence} without its last line: it is not whole"
    return verifier


def _begin(document: Mapping[str, JsonValue]) -> Verifier:
    """What verifies the rows under that first line."""
    if document["format"] == JOURNAL_FORMAT:
        told = document.get("pruned")
        return Verifier(point=None if told is None else structure(PrunePoint, told))
    if document["format"] == LEDGER_FORMAT:
        after = structure(HeadDocument, document.get("after"))
        head = Head(sequence=after.sequence, epoch=after.epoch, journal=after.journal, ledger=after.ledger)
        return Verifier(head=head, after=head)
    return Verifier(problem=f"line 1: {_NOT_OURS}")


def json_line(document: JsonValue) -> str:
    """One document on a line of its own."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
