"""The file of a backup: an uncompressed tar of a few members. The rows come first and the manifest last, so that a file
that was cut has none."""

import gzip
import hashlib
import io
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final, TypeVar

from lunanexa_apps.backup.manifest import MANIFEST, ROWS, SIGNATURE, SIGNED_MEMBERS, Member
from lunanexa_apps.codec import CodecError, structure
from lunanexa_apps.journal_lines import JOURNAL_FORMAT
from lunanexa_apps.journal_rows import row_of_document
from lunanexa_core.canonical import JsonValue, NotCanonical, strict_json
from lunanexa_core.contract.journal import HeadDocument
from lunanexa_core.journal import Head, PrunePoint, Row
from lunanexa_ports.errors import PortFault

T = TypeVar("T")

LINE_BYTES_MAX: Final = 256 << 20
"""One row; that of a pruning carries all bound idempotency keys."""
SMALL_BYTES_MAX: Final = 64 << 20
"""Every member but the rows is read at once."""
_COMPRESSION: Final = 1
"""Hashes are most of it and don't compress: more effort gains a few per cent."""
_READ_BYTES: Final = 1 << 20


class BundleDamaged(PortFault):
    """The file is no whole backup; the message says what is wrong with it."""


@contextmanager
def new_bundle(path: str, *, force: bool) -> Iterator[IO[bytes]]:
    """A file of its owner's alone that has the name ``path`` once the block has ended well, and is durable then. Raises
    ``OSError``; ``FileExistsError`` without ``force`` when there is such a file."""
    if not force and os.path.lexists(path):
        raise FileExistsError(17, "there is such a file already", path)
    folder = os.path.dirname(path) or "."
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{os.path.basename(path)}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if force:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
        _sync_folder(folder)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Hashed(io.RawIOBase):
    """What is written through it, counted and hashed."""

    def __init__(self, file: IO[bytes]) -> None:
        self.size_bytes = 0
        self.digest = hashlib.sha256()
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]  # whatever gzip hands over has a buffer
        self._file.write(view)
        self.digest.update(view)
        self.size_bytes += len(view)
        return len(view)


@contextmanager
def write_rows(file: IO[bytes], wall_ms: int) -> Iterator[tuple[gzip.GzipFile, list[Member]]]:
    """Begins the bundle anew in ``file``: lines that are written to the first become the rows' member, which the list
    holds after the block."""
    file.seek(0)
    file.truncate()
    file.write(bytes(tarfile.BLOCKSIZE))  # The header: its size is known when the rows are written.
    hashed, made = _Hashed(file), list[Member]()
    with gzip.GzipFile(fileobj=hashed, mode="wb", compresslevel=_COMPRESSION, mtime=0, filename="") as lines:
        yield lines, made
    made.append(Member(name=ROWS, sha256=hashed.digest.hexdigest(), size_bytes=hashed.size_bytes))
    _pad(file, hashed.size_bytes)
    file.seek(0)
    file.write(_header(ROWS, hashed.size_bytes, wall_ms))
    file.seek(0, os.SEEK_END)


def write_member(file: IO[bytes], name: str, data: bytes, wall_ms: int) -> None:
    """One more member, whole."""
    file.write(_header(name, len(data), wall_ms))
    file.write(data)
    _pad(file, len(data))


def end_bundle(file: IO[bytes]) -> None:
    """What a tar ends with."""
    file.write(bytes(2 * tarfile.BLOCKSIZE))


def _header(name: str, size_bytes: int, wall_ms: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size_bytes, 0o600, wall_ms // 1_000
    header = info.tobuf(tarfile.GNU_FORMAT)
    assert len(header) == tarfile.BLOCKSIZE, name
    return header


def _pad(file: IO[bytes], size_bytes: int) -> None:
    file.write(bytes(-size_bytes % tarfile.BLOCKSIZE))


class Bundle:
    """A backup's file, for reading. Raises :class:`BundleDamaged` where it is none, or is cut."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._members: dict[str, tarfile.TarInfo] = {}
        file.seek(0)
        try:
            self._tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115  # it lives as long as the file
            for info in self._tar:
                if not info.isreg() or info.name in self._members or info.name not in _NAMES:
                    raise BundleDamaged(f"the backup holds {info.name!r}, which none of ours does")
                self._members[info.name] = info
        except (tarfile.TarError, OSError, EOFError) as error:
            raise BundleDamaged(f"not a whole backup ({error})") from None
        missing = [name for name in (ROWS, MANIFEST, SIGNATURE) if name not in self._members]
        if missing:
            raise BundleDamaged(f"not a whole backup: {', '.join(missing)} is missing")

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._members)

    def read(self, name: str) -> bytes:
        """A small member, whole."""
        if name not in self._members:
            raise BundleDamaged(f"{name} is missing")
        if self._members[name].size > SMALL_BYTES_MAX:
            raise BundleDamaged(f"{name} is longer than {SMALL_BYTES_MAX} bytes")
        with self._open(name) as member:
            return member.read()

    def measure(self, name: str) -> Member:
        """What the member ``name`` is in fact."""
        digest, size_bytes = hashlib.sha256(), 0
        with self._open(name) as member:
            while data := member.read(_READ_BYTES):
                digest.update(data)
                size_bytes += len(data)
        return Member(name=name, sha256=digest.hexdigest(), size_bytes=size_bytes)

    @contextmanager
    def rows(self) -> Iterator["RowLines"]:
        """The rows, from the first."""
        try:
            with self._open(ROWS) as member, gzip.GzipFile(fileobj=member, mode="rb") as lines:
                yield RowLines(lines)
        except (OSError, EOFError, zlib.error) as error:
            raise BundleDamaged(f"{ROWS} can't be unpacked: {error}") from None

    def _open(self, name: str) -> IO[bytes]:
        found = self._tar.extractfile(self._members[name])
        assert found is not None, name
        return found


_NAMES: Final = frozenset({*SIGNED_MEMBERS, MANIFEST, SIGNATURE})


class RowLines:
    """The lines of an exported journal. ``point`` is known at once, ``end`` when all rows were taken."""

    def __init__(self, lines: gzip.GzipFile) -> None:
        self.end: Head | None = None
        self._lines = lines
        self._number = 0
        first = self._next()
        if not isinstance(first, dict) or first.get("format") != JOURNAL_FORMAT:
            raise BundleDamaged(f"{ROWS} is no exported journal")
        pruned = first.get("pruned")
        self.point = None if pruned is None else self._structured(PrunePoint, pruned)

    def __iter__(self) -> Iterator[Row]:
        while (document := self._next()) is not None:
            if self.end is not None:
                raise BundleDamaged(f"{ROWS}, line {self._number}: there is more after the last line")
            if isinstance(document, dict) and "end" in document:
                told = self._structured(HeadDocument, document["end"])
                self.end = Head(sequence=told.sequence, epoch=told.epoch, journal=told.journal, ledger=told.ledger)
                continue
            try:
                yield row_of_document(document)
            except CodecError as error:
                raise BundleDamaged(f"{ROWS}, line {self._number}: {error}") from None
        if self.end is None:
            raise BundleDamaged(f"{ROWS} ends without its last line")

    def _structured(self, kind: type[T], document: JsonValue) -> T:
        try:
            return structure(kind, document)
        except CodecError as error:
            raise BundleDamaged(f"{ROWS}, line {self._number}: {error}") from None

    def _next(self) -> JsonValue:
        line = self._lines.readline(LINE_BYTES_MAX)
        if not line:
            return None
        self._number += 1
        try:
            document: JsonValue = strict_json(line)
        except NotCanonical as error:
            raise BundleDamaged(f"{ROWS}, line {self._number}: {error}") from None
        return document
