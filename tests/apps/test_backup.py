"""A backup holds all rows or says what is wrong with it; a restore gives the same store, up to the row asked for."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

import pytest

from lunanexa_apps.backup.bundle import BundleDamaged, new_bundle
from lunanexa_apps.backup.create import create_backup
from lunanexa_apps.backup.manifest import KEYS, MANIFEST, PRUNING, ROWS, SIGNATURE, Manifest, sign_manifest
from lunanexa_apps.backup.restore import restore_backup, why_not_until
from lunanexa_apps.backup.verify import Verified, verify_backup
from lunanexa_apps.codec import encode
from lunanexa_apps.controller.replay import replay
from lunanexa_apps.controller.rows import to_row
from lunanexa_core.events import LedgerPruned
from lunanexa_core.journal import Chain, Head, Row
from lunanexa_core.ledger_carry import carry_of
from lunanexa_core.recovery_reasons import RecoveryCause, RecoveryReason
from lunanexa_core.state_digest import state_digest
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.journal import JournalState, SimulatedJournal
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.signing import SimulatedKeyring, SimulatedVerifier
from tests.apps.snapshot_rows import put, replayed, rows_of, served

VERSION: Final = "1.2.3"
KEYRING: Final = SimulatedKeyring()
SIGNER: Final = KEYRING.new_key(Streams(1).stream("one"))
OTHER: Final = KEYRING.new_key(Streams(1).stream("other"))
VERIFIER: Final = SimulatedVerifier(KEYRING)


def quiet(_: int, __: int) -> None:
    pass


def store_of(rows: list[Row]) -> SimulatedJournal:
    disk = SimulatedDisk()
    put(disk, rows)
    return SimulatedJournal(disk.mount())


def pruned_rows(count: int = 40, until: int = 30) -> list[Row]:
    """The rows of a small service whose ledger was pruned up to ``until``, and then went on for one row."""
    rows = rows_of(served(count))
    before = [row for row in rows if row.sequence <= until]
    ledger = [row for row in before if row.chain is Chain.LEDGER]
    state = replayed(before).state
    pruned = LedgerPruned(
        after=0,
        until=ledger[-1].sequence,
        count=len(ledger),
        receipts=sum(totals.requests for totals in state.totals.values()),
        ledger=ledger[-1].hash,
        carry=encode(carry_of(state)).decode(),
    )
    head = replayed(rows).head
    last = to_row(head, pruned, epoch=1, wall_ms=rows[-1].wall_ms, actor="janitor")
    kept = [row for row in rows if row.chain is Chain.JOURNAL or row.sequence > pruned.until]
    return [*kept, last]


async def made(rows: list[Row]) -> tuple[io.BytesIO, Manifest]:
    file = io.BytesIO()
    manifest = await create_backup(store_of(rows), file, SIGNER, wall_ms=9_000, version=VERSION, progress=quiet)
    return file, manifest


async def restored(file: IO[bytes], manifest: Manifest, disk: SimulatedDisk, until: int) -> Head | None:
    store = SimulatedJournal(disk.mount())
    return await restore_backup(file, manifest, store, until=until, wall_ms=1, progress=quiet)


def verified(file: IO[bytes], *, key: str | None = None, version: str = VERSION) -> Verified:
    file.seek(0)
    return verify_backup(file, VERIFIER, public_key=key, version=version, progress=quiet)


def repacked(file: io.BytesIO, change: Callable[[dict[str, bytes]], None]) -> io.BytesIO:
    """The same bundle with its members changed."""
    file.seek(0)
    with tarfile.open(fileobj=file) as tar:
        members = {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]  # all are files
    change(members)
    changed = io.BytesIO()
    with tarfile.open(fileobj=changed, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return changed


@pytest.mark.parametrize("rows", [rows_of(served(12)), pruned_rows()], ids=["whole", "pruned"])
async def test_a_backup_is_restored_to_the_same_store(rows: list[Row]) -> None:
    file, manifest = await made(rows)
    found = verified(file, key=SIGNER.public_key)
    assert found.problems == []
    assert (found.origin, found.replayed) == (True, True)
    assert (manifest.pruned is None) == ([row.sequence for row in rows] == list(range(1, len(rows) + 1)))
    target = SimulatedDisk()
    head = await restored(file, manifest, target, manifest.head.sequence)
    assert target.state(JournalState).rows[:-1] == rows
    assert head == target.state(JournalState).head
    copy = await replay(SimulatedJournal(target.mount()))
    assert copy.head == head
    assert copy.state.recovery == (RecoveryReason(cause=RecoveryCause.RESTORED, sequence=rows[-1].sequence, epoch=1),)
    copy.state.recovery = None
    assert state_digest(copy.state) == manifest.state_digest


async def test_two_backups_of_the_same_rows_hold_the_same_rows() -> None:
    (_, one), (_, other) = await made(rows_of(served(5))), await made(rows_of(served(5)))
    assert one == other


async def test_a_point_in_time() -> None:
    rows = rows_of(served(12))
    file, manifest = await made(rows)
    until = 17
    target = SimulatedDisk()
    head = await restored(file, manifest, target, until)
    assert head is not None
    assert head.sequence == until + 1
    assert target.state(JournalState).rows[:-1] == rows[:until]
    assert why_not_until(manifest, until) is None
    assert "ends at row" in str(why_not_until(manifest, manifest.head.sequence + 1))


async def test_no_point_in_time_before_the_ledger_was_pruned() -> None:
    rows = pruned_rows()
    _, manifest = await made(rows)
    assert manifest.pruned is not None
    assert why_not_until(manifest, rows[-1].sequence) is None
    refused = str(why_not_until(manifest, rows[-1].sequence - 1))
    assert f"up to row {manifest.pruned.until} by row {rows[-1].sequence}" in refused


async def test_only_an_empty_store_is_filled() -> None:
    file, manifest = await made(rows_of(served(3)))
    full, held = SimulatedDisk(), rows_of(served(1))
    put(full, held)
    assert await restored(file, manifest, full, manifest.head.sequence) is None
    assert full.state(JournalState).rows == held


async def test_what_fails_half_way_leaves_nothing() -> None:
    file, manifest = await made(rows_of(served(3)))
    target = SimulatedDisk()
    target.faults.full = True
    with pytest.raises(PortUnavailable):
        await restored(file, manifest, target, manifest.head.sequence)
    assert target.state(JournalState).rows == []


async def test_a_file_that_is_another_by_now_is_noticed() -> None:
    file, manifest = await made(rows_of(served(3)))
    target = SimulatedDisk()
    damaged = repacked(file, lambda members: members.update({ROWS: _without_a_row(members[ROWS])}))
    with pytest.raises(BundleDamaged, match="changed while it was read"):
        await restored(damaged, manifest, target, manifest.head.sequence)
    assert target.state(JournalState).rows == []


def _without_a_row(data: bytes) -> bytes:
    lines = gzip.decompress(data).splitlines(keepends=True)
    return gzip.compress(b"".join(lines[:3] + lines[4:]))


async def test_an_empty_or_damaged_store_is_not_backed_up() -> None:
    with pytest.raises(PortUnavailable, match="nothing to back up"):
        await made([])
    rows = rows_of(served(4))
    with pytest.raises(PortFault, match="damaged at sequence 13"):
        await made([*rows[:11], *rows[12:]])


async def test_rows_that_come_meanwhile_are_left_to_the_next() -> None:
    rows = rows_of(served(4))
    disk = SimulatedDisk()
    put(disk, rows)
    journal = SimulatedJournal(disk.mount())
    head_at_begin = disk.state(JournalState).head

    class Busy(SimulatedJournal):
        async def head(self) -> Head:
            head = await journal.head()
            put(disk, rows_of(served(6)))
            return head

    file = io.BytesIO()
    manifest = await create_backup(Busy(disk.mount()), file, SIGNER, wall_ms=0, version=VERSION, progress=quiet)
    assert manifest.head.sequence == head_at_begin.sequence
    assert verified(file).ok


async def test_a_ledger_that_is_pruned_meanwhile_is_read_again() -> None:
    disk = SimulatedDisk()
    put(disk, rows_of(served(40)))

    class Pruned(SimulatedJournal):
        async def head(self) -> Head:
            head = await super().head()
            put(disk, pruned_rows())
            return head

    file = io.BytesIO()
    manifest = await create_backup(Pruned(disk.mount()), file, SIGNER, wall_ms=0, version=VERSION, progress=quiet)
    assert manifest.pruned is not None
    assert verified(file).ok


# --- damage ---


def _drop(name: str) -> Callable[[dict[str, bytes]], None]:
    return lambda members: members.__delitem__(name)


def _flip(name: str, place: int) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        data = bytearray(members[name])
        data[place] ^= 1
        members[name] = bytes(data)

    return change


def _put(name: str, data: bytes) -> Callable[[dict[str, bytes]], None]:
    return lambda members: members.update({name: data})


def _manifest(**changes: object) -> Callable[[dict[str, bytes]], None]:
    """A changed manifest, signed anew: what only the rows can show."""

    def change(members: dict[str, bytes]) -> None:
        data = json.dumps({**json.loads(members[MANIFEST]), **changes}).encode()
        members |= {MANIFEST: data, SIGNATURE: sign_manifest(data, SIGNER)}

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_drop(ROWS), "rows.jsonl.gz is missing"),
        (_drop(MANIFEST), "manifest.json is missing"),
        (_drop(SIGNATURE), "manifest.sig is missing"),
        (_drop(KEYS), "keys.json is missing"),
        (_put("more", b""), "'more'"),
        (_flip(ROWS, 100), "rows.jsonl.gz is damaged: its bytes"),
        (_put(KEYS, b"{}"), "keys.json is damaged: its length"),
        (_flip(MANIFEST, 40), "signature is not that of manifest.json"),
        (_put(SIGNATURE, b"{}"), "manifest.sig can't be read"),
        (_put(ROWS, b"nothing"), "can't be unpacked"),
        (_put(PRUNING, b"{}"), "pruning.json is there, and not in the manifest"),
        (_manifest(state_digest="0" * 64), "make another state"),
        (_manifest(rows={"journal": 1, "ledger": 1}), "counts other rows"),
        (_manifest(cluster="cl_9"), "of the cluster cl_1"),
        (_manifest(schema="lunanexa.backup.v9"), "lunanexa.backup.v9"),
        (
            _manifest(head={"sequence": 4, "epoch": 1, "journal": "0" * 64, "ledger": "0" * 64}),
            "the manifest's head stands at 4",
        ),
    ],
)
async def test_damage_is_named(change: Callable[[dict[str, bytes]], None], problem: str) -> None:
    file, _ = await made(rows_of(served(6)))
    found = verified(repacked(file, change))
    assert not found.ok
    assert any(problem in one for one in found.problems), found.problems


async def test_a_cut_file_is_not_whole() -> None:
    file, _ = await made(rows_of(served(6)))
    whole = file.getvalue()
    for length in (0, 100, 512, 1_000, len(whole) // 2, len(whole) - 2_048):
        found = verified(io.BytesIO(whole[:length]))
        assert found.problems, length


async def test_who_signed_it() -> None:
    file, _ = await made(rows_of(served(2)))
    assert verified(file).origin is None
    assert verified(file).signature is not None
    found = verified(file, key=OTHER.public_key)
    assert found.origin is False
    assert "another key" in found.problems[0]


async def test_another_version_compares_no_state() -> None:
    file, _ = await made(rows_of(served(2)))
    found = verified(file, version="9.9.9")
    assert (found.ok, found.replayed) == (True, False)


# --- the file ---


def test_a_bundle_is_there_wholly_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "backup"

    def fail() -> None:
        with new_bundle(str(path), force=False) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []
    with new_bundle(str(path), force=False) as file:
        file.write(b"one")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"one", 0o600)
    with pytest.raises(FileExistsError), new_bundle(str(path), force=False):
        raise AssertionError("not reached")
    with new_bundle(str(path), force=True) as file:
        file.write(b"other")
    assert path.read_bytes() == b"other"
    assert list(tmp_path.iterdir()) == [path]
