"""Inbox and outbox as directories, for instance on a medium that is plugged in."""

import contextlib
import hashlib
import heapq
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import trio

from lunanexa_adapters.files.atomic import make_directory, sync_directory, write_atomic
from lunanexa_adapters.files.bundle_files import PIECE_BYTES, open_regular, read_bounded, read_bundle
from lunanexa_adapters.files.counter import GenerationCounter
from lunanexa_core.ids import is_identifier
from lunanexa_core.southbound.bundle import Blob, BundleRefusal, blob_path
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_core.southbound.outbox import REPORTS_KEPT
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.inbox import BUNDLES_MAX, Inbox

ROOM_KEPT_BYTES: Final = 256 << 20
"""So much of the disk no blob may take: the node's store and its engines' logs need it."""
REPORTS_READ_MAX: Final = 4_096
"""So many reports of one outbox are read, of so many bytes together."""
REPORTS_BYTES_MAX: Final = 64 << 20
_REPORT_BYTES_MAX: Final = 4 << 20
_DIGITS: Final = 12
_REPORT, _JSON = "report-", ".json"
_REPORT_NAME: Final = re.compile(r"report-([0-9]{1,18})\.json\Z")
_REPORT_PART: Final = re.compile(r"\.report-[0-9]{1,18}\.json\.[^.]*\.tmp\Z")
_BLOB: Final = re.compile(r"[0-9a-f]{64}\Z")
_PART: Final = re.compile(r"\.[0-9a-f]{64}\.[^.]*\.tmp\Z")
_RUNNABLE: Final = 0o555
_READABLE: Final = 0o644
_PARTS: Final = ".tmp"


class DirectoryInbox(Inbox):
    """Each folder of ``inbox`` whose name is an identifier is a bundle, unless it begins with a dot. Blobs go to
    ``blobs`` (which holds ``sha256/<hex>``); ``counter`` is a file of lines, of which the highest counts."""

    def __init__(self, *, inbox: Path, outbox: Path, blobs: Path, counter: Path) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._blobs = blobs
        self._counter = GenerationCounter(counter)
        self._reporting = threading.Lock()
        self._reported = 0
        """Which report was asked for last."""

    async def names(self) -> Sequence[str]:
        # A medium may answer never: who stops does not wait for it.
        return await trio.to_thread.run_sync(self._names, abandon_on_cancel=True)

    async def read(self, name: str) -> SignedDocument | BundleRefusal | None:
        return await trio.to_thread.run_sync(self._read, name, abandon_on_cancel=True)

    async def take_blob(self, name: str, blob: Blob) -> BundleRefusal | None:
        # Gigabytes may be on their way: who is cancelled does not wait for the thread, which harms nothing.
        return await trio.to_thread.run_sync(partial(self._take, name, blob), abandon_on_cancel=True)

    async def keep_blobs(self, wanted: Collection[str]) -> None:
        await trio.to_thread.run_sync(self._keep, frozenset(wanted))

    async def floor(self) -> int:
        return await trio.to_thread.run_sync(self._counter.read)

    async def raise_floor(self, generation: int) -> None:
        await trio.to_thread.run_sync(self._counter.raise_to, generation)

    async def report(self, number: int, report: bytes) -> None:
        self._reported = number
        await trio.to_thread.run_sync(self._report, number, report, abandon_on_cancel=True)

    # --- the inbox ---

    def _names(self) -> Sequence[str]:
        try:
            with os.scandir(self._inbox) as found:
                # A link is followed nowhere: it may lead in circles, or to what answers never.
                names = (entry.name for entry in found if _may_be_bundle(entry.name) and _is_folder(entry))
                return sorted(heapq.nlargest(BUNDLES_MAX, names))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise _unavailable(self._inbox, error) from error

    def _read(self, name: str) -> SignedDocument | BundleRefusal | None:
        try:
            found = read_bundle(self._inbox / name)
        except OSError:
            # One damaged folder of a medium must not keep the others out.
            return BundleRefusal.NOT_READABLE
        return BundleRefusal.NOT_READABLE if isinstance(found, ValueError) else found

    def _take(self, name: str, blob: Blob) -> BundleRefusal | None:
        folder, place = self._blobs / "sha256", self._blobs / "sha256" / blob.sha256
        with _port_errors(folder):
            make_directory(folder)
            if _is_right(place, blob):
                return None
        try:
            source = open_regular(self._inbox / name / blob_path(blob.sha256))
        except ValueError:
            return BundleRefusal.BLOB_CHANGED
        except OSError:
            return BundleRefusal.BLOB_MISSING
        with open(source, "rb") as file, _port_errors(folder):
            if os.fstat(file.fileno()).st_size != blob.size_bytes:
                return BundleRefusal.BLOB_CHANGED
            if shutil.disk_usage(folder).free < blob.size_bytes + ROOM_KEPT_BYTES:
                return BundleRefusal.NO_ROOM
            return _copy(file.fileno(), place, blob)

    def _keep(self, wanted: frozenset[str]) -> None:
        folder = self._blobs / "sha256"
        with _port_errors(folder):
            try:
                names = os.listdir(folder)
            except FileNotFoundError:
                return
            # Nothing that is neither a blob nor a part of one: somebody else has put it there.
            unwanted = [name for name in names if _PART.match(name) or (_BLOB.match(name) and name not in wanted)]
            for name in unwanted:
                (folder / name).unlink(missing_ok=True)
            if unwanted:
                sync_directory(folder)

    # --- the outbox ---

    def _report(self, number: int, report: bytes) -> None:
        with self._reporting, _port_errors(self._outbox):
            if number != self._reported:
                return  # It was given up before its turn, and would remove the next one.
            write_atomic(self._outbox / f"{_REPORT}{number:0{_DIGITS}}{_JSON}", report, _READABLE)
            names = os.listdir(self._outbox)
            numbers = {name: int(found[1]) for name in names if (found := _REPORT_NAME.match(name)) is not None}
            own = sorted((there for there in numbers.values() if there <= number), reverse=True)[:REPORTS_KEPT]
            # Of a write that was cut off, a part is left.
            gone = [name for name in names if _REPORT_PART.match(name) or numbers.get(name, number) not in own]
            for name in gone:
                (self._outbox / name).unlink(missing_ok=True)


def _may_be_bundle(name: str) -> bool:
    return is_identifier(name) and not name.startswith(".")


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False  # One damaged entry of a medium must not keep the others out.


def read_reports(outbox: Path) -> Sequence[tuple[str, bytes]]:
    """What lies in an outbox, by file name, oldest first; nothing of what no node writes. Raises ``PortUnavailable``
    where it can't be read, ``PortFault`` where there are too many."""
    try:
        paths = sorted(path for path in outbox.iterdir() if path.name.startswith(_REPORT) and path.suffix == _JSON)
        if len(paths) > REPORTS_READ_MAX:
            raise PortFault(f"{outbox} holds more than {REPORTS_READ_MAX} reports: put older ones elsewhere")
        reports, left = [], REPORTS_BYTES_MAX
        for path in paths:
            data = _report_bytes(path)
            left -= len(data)
            if left < 0:
                raise PortFault(f"{outbox} holds more than {REPORTS_BYTES_MAX} bytes: put older reports elsewhere")
            reports.append((path.name, data))
    except OSError as error:
        raise _unavailable(outbox, error) from error
    return reports


def _report_bytes(path: Path) -> bytes:
    try:
        return read_bounded(path, _REPORT_BYTES_MAX)
    except ValueError:
        return b""


def _is_right(place: Path, blob: Blob) -> bool:
    try:
        descriptor = open_regular(place)
    except (FileNotFoundError, ValueError):
        return False
    with open(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size != blob.size_bytes:
            return False
        return hashlib.file_digest(file, "sha256").hexdigest() == blob.sha256


def _copy(source: int, place: Path, blob: Blob) -> BundleRefusal | None:
    """What is hashed is what was written: the medium is read once."""
    digest, left = hashlib.sha256(), blob.size_bytes
    descriptor, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{blob.sha256}.", suffix=_PARTS)
    try:
        with open(descriptor, "wb") as file:
            while left and (piece := _piece(source, min(left, PIECE_BYTES))):
                digest.update(piece)
                file.write(piece)
                left -= len(piece)
            if left or digest.hexdigest() != blob.sha256:
                return BundleRefusal.BLOB_CHANGED
            file.flush()
            os.fchmod(file.fileno(), _RUNNABLE)
            os.fsync(file.fileno())
        os.replace(temporary, place)
        sync_directory(place.parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    return None


def _piece(source: int, most_bytes: int) -> bytes:
    """Nothing, where the medium is damaged."""
    try:
        return os.read(source, most_bytes)
    except OSError:
        return b""


@contextlib.contextmanager
def _port_errors(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PortUnavailable(
            f"{place} can't be changed ({error.strerror}): see that this user may write there, and that the disk has"
            " room"
        ) from error


def _unavailable(place: Path, error: OSError) -> PortUnavailable:
    return PortUnavailable(f"{place} can't be read ({error.strerror}): see that it is whole, and this user may read it")
