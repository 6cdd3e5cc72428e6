"""Inbox and outbox as directories, for instance on a medium that is plugged in."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import trio

from lunanexa_adapters.files.atomic import make_directory, sync_directory, write_atomic
from lunanexa_adapters.files.bundle_files import PIECE_BYTES, open_regular, read_bounded, read_bundle
from lunanexa_core.ids import is_identifier
from lunanexa_core.southbound.bundle import Blob, BundleRefusal, blob_path
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_core.southbound.outbox import REPORTS_KEPT
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.inbox import BUNDLES_MAX, Inbox

_COUNTER_BYTES_MAX: Final = 1 << 20
_REPORT_BYTES_MAX: Final = 4 << 20
_DIGITS: Final = 12
_REPORT, _JSON = "report-", ".json"
_RUNNABLE: Final = 0o555
_READABLE: Final = 0o644
_OTHERS_WRITE: Final = 0o022
_PARTS: Final = ".tmp"


class DirectoryInbox(Inbox):
    """Each folder of ``inbox`` whose name is an identifier is a bundle, unless it begins with a dot. Blobs go to
    ``blobs`` (which holds ``sha256/<hex>``); ``counter`` is a file of lines, of which the highest counts."""

    def __init__(self, *, inbox: Path, outbox: Path, blobs: Path, counter: Path) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._blobs = blobs
        self._counter = counter

    async def names(self) -> Sequence[str]:
        return await trio.to_thread.run_sync(self._names)

    async def read(self, name: str) -> SignedDocument | BundleRefusal | None:
        return await trio.to_thread.run_sync(self._read, name)

    async def take_blob(self, name: str, blob: Blob) -> BundleRefusal | None:
        # Gigabytes may be on their way: who is cancelled does not wait for the thread, which harms nothing.
        return await trio.to_thread.run_sync(partial(self._take, name, blob), abandon_on_cancel=True)

    async def floor(self) -> int:
        return await trio.to_thread.run_sync(self._floor)

    async def raise_floor(self, generation: int) -> None:
        await trio.to_thread.run_sync(self._raise, generation)

    async def report(self, number: int, report: bytes) -> None:
        await trio.to_thread.run_sync(self._report, number, report)

    # --- the inbox ---

    def _names(self) -> Sequence[str]:
        try:
            with os.scandir(self._inbox) as found:
                entries = [entry.name for entry in found if is_identifier(entry.name) and entry.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise _unavailable(self._inbox, error) from error
        return [name for name in sorted(entries) if not name.startswith(".")][-BUNDLES_MAX:]

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
            return _copy(file.fileno(), place, blob)

    # --- the counter ---

    def _floor(self) -> int:
        try:
            lines = read_bounded(self._counter, _COUNTER_BYTES_MAX).split(b"\n")
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise PortFault(f"{error}, so it is no counter: move it away") from error
        except OSError as error:
            raise PortFault(self._unusable(error)) from error
        # Behind the last end of a line is what a power loss cut.
        return max((int(line) for line in lines[:-1] if line.isdigit()), default=0)

    def _raise(self, generation: int) -> None:
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._counter, flags, 0o600)
        except OSError as error:
            raise PortFault(self._unusable(error)) from error
        try:
            if os.fstat(descriptor).st_mode & _OTHERS_WRITE:
                raise PortFault(f"{self._counter} may be written by others: run `chmod 600 {self._counter}`")
            if generation > self._floor():
                # A line of its own, also behind one that a power loss cut.
                os.write(descriptor, f"\n{generation}\n".encode())
                os.fsync(descriptor)
                sync_directory(self._counter.parent)
        except OSError as error:
            raise PortUnavailable(self._unusable(error)) from error
        finally:
            os.close(descriptor)

    def _unusable(self, error: OSError) -> str:
        make = f"install -o $(id -un) -m 600 /dev/null {self._counter}"
        return f"the counter {self._counter} can't be used ({error.strerror}): as root, for this user: {make}"

    # --- the outbox ---

    def _report(self, number: int, report: bytes) -> None:
        write_atomic(self._outbox / f"{_REPORT}{number:0{_DIGITS}}{_JSON}", report, _READABLE)
        with _port_errors(self._outbox):
            names = sorted(path.name for path in self._outbox.glob(f"{_REPORT}*{_JSON}"))
            for name in names[:-REPORTS_KEPT]:
                (self._outbox / name).unlink(missing_ok=True)


def read_reports(outbox: Path) -> Sequence[tuple[str, bytes]]:
    """What lies in an outbox, by file name, oldest first; nothing of what no node writes. Raises ``PortUnavailable``
    where it can't be read."""
    try:
        paths = sorted(path for path in outbox.iterdir() if path.name.startswith(_REPORT) and path.suffix == _JSON)
        return [(path.name, _report_bytes(path)) for path in paths]
    except OSError as error:
        raise _unavailable(outbox, error) from error


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
