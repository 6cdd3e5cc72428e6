"""Media as directories: what only files can be."""

import json
import os
import resource
import shutil
import sys
import threading
from functools import partial
from pathlib import Path, PosixPath

import pytest
import trio

from lunanexa_adapters.crypto.signing import Ed25519Signer, Ed25519Verifier
from lunanexa_adapters.files.bundle_files import BUNDLE, SIGNATURE, describe_blob, read_whole_bundle, write_bundle
from lunanexa_adapters.files.inbox import (
    REPORTS_BYTES_MAX,
    REPORTS_READ_MAX,
    ROOM_KEPT_BYTES,
    DirectoryInbox,
    read_reports,
)
from lunanexa_core.southbound.bundle import Blob, BundleRefusal, blob_path
from lunanexa_ports.errors import PortFault, PortUnavailable


@pytest.fixture
def inbox(tmp_path: Path) -> DirectoryInbox:
    (tmp_path / "inbox").mkdir()
    return DirectoryInbox(
        inbox=tmp_path / "inbox",
        outbox=tmp_path / "outbox",
        blobs=tmp_path / "blobs",
        counter=tmp_path / "counter",
    )


async def test_what_is_written_is_read_and_an_oci_layout(inbox: DirectoryInbox, tmp_path: Path) -> None:
    signer = Ed25519Signer.load_or_create(tmp_path / "key.pem")
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights" * 1_000)
    blob, folder = describe_blob(file), tmp_path / "inbox" / "0001"
    document = signer.sign(b'{"generation":1}')
    write_bundle(folder, document, [(file, blob)])
    read = await inbox.read("0001")
    assert read == read_whole_bundle(folder) == document
    assert Ed25519Verifier().verify(document, {signer.key_id: signer.public_key})
    assert await inbox.take_blob("0001", blob) is None
    placed = tmp_path / "blobs" / "sha256" / blob.sha256
    assert placed.read_bytes() == file.read_bytes()
    assert os.access(placed, os.X_OK)
    assert [path.name for path in placed.parent.iterdir()] == [blob.sha256], "nothing half is left"
    assert json.loads((folder / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads((folder / "index.json").read_bytes())["manifests"]
    manifest = folder / "blobs" / "sha256" / entry["digest"].removeprefix("sha256:")
    assert describe_blob(manifest).sha256 == manifest.name
    assert manifest.stat().st_size == entry["size"]
    (layer,) = json.loads(manifest.read_bytes())["layers"]
    assert (layer["digest"], layer["size"]) == (f"sha256:{blob.sha256}", blob.size_bytes)
    with pytest.raises(PortFault, match="already"):
        write_bundle(folder, document, [])


async def test_links_and_pipes_are_no_bundles(inbox: DirectoryInbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"{}")
    secret = describe_blob(tmp_path / "secret")
    for name in ("link", "pipe", "blobs", ".copying"):
        folder = tmp_path / "inbox" / name
        (folder / "blobs" / "sha256").mkdir(parents=True)
        (folder / SIGNATURE).write_bytes(b"{}")
    (tmp_path / "inbox" / "link" / BUNDLE).symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "inbox" / "pipe" / BUNDLE)
    (tmp_path / "inbox" / "blobs" / secret.path).symlink_to(tmp_path / "secret")
    assert list(await inbox.names()) == ["blobs", "link", "pipe"]
    assert await inbox.read("link") is BundleRefusal.NOT_READABLE
    assert await inbox.read("pipe") is BundleRefusal.NOT_READABLE
    assert await inbox.take_blob("blobs", secret) is BundleRefusal.BLOB_CHANGED


async def test_a_blob_that_was_spoilt_on_the_node_is_taken_anew(inbox: DirectoryInbox, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")
    blob = describe_blob(file)
    write_bundle(
        tmp_path / "inbox" / "1", Ed25519Signer.load_or_create(tmp_path / "key.pem").sign(b"{}"), [(file, blob)]
    )
    placed = tmp_path / "blobs" / "sha256" / blob.sha256
    placed.parent.mkdir(parents=True)
    placed.write_bytes(b"w3ights")
    assert await inbox.take_blob("1", blob) is None
    assert placed.read_bytes() == b"weights"


async def test_a_damaged_entry_keeps_no_bundle_out_and_links_are_none(inbox: DirectoryInbox, tmp_path: Path) -> None:
    (tmp_path / "inbox" / "loop").symlink_to("loop")
    (tmp_path / "inbox" / "elsewhere").symlink_to(tmp_path)
    (tmp_path / "inbox" / "whole").mkdir()
    assert list(await inbox.names()) == ["whole"]


async def test_what_was_not_taken_to_its_end_goes_and_nothing_of_others(inbox: DirectoryInbox, tmp_path: Path) -> None:
    place = tmp_path / "blobs" / "sha256"
    place.mkdir(parents=True)
    kept, gone = "a" * 64, "b" * 64
    for name in (kept, gone, f".{kept}.x1_y.tmp", f".{gone}.abc.tmp", "notes", "c" * 63):
        (place / name).touch()
    await inbox.keep_blobs([kept])
    assert sorted(path.name for path in place.iterdir()) == sorted([kept, "notes", "c" * 63])
    (tmp_path / "outbox").mkdir()
    for name in (".report-000000000001.json.abc.tmp", "report-1.txt", "notes"):
        (tmp_path / "outbox" / name).touch()
    await inbox.report(1, b"one")
    found = sorted(path.name for path in (tmp_path / "outbox").iterdir())
    assert found == ["notes", "report-000000000001.json", "report-1.txt"]


_TAKER = """
import sys, trio
from pathlib import Path
from lunanexa_adapters.files.inbox import DirectoryInbox
from lunanexa_core.southbound.bundle import Blob, blob_path
folder, sha256, size = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
inbox = DirectoryInbox(
    inbox=folder / "inbox", outbox=folder / "outbox", blobs=folder / "blobs", counter=folder / "counter"
)
trio.run(inbox.take_blob, "1", Blob(path=blob_path(sha256), size_bytes=size, sha256=sha256))
"""


@pytest.mark.slow
async def test_who_is_killed_while_it_copies_leaves_nothing_that_counts(inbox: DirectoryInbox, tmp_path: Path) -> None:
    folder, size_bytes, sha256 = tmp_path / "inbox" / "1" / "blobs" / "sha256", 4 << 30, "a" * 64
    folder.mkdir(parents=True)
    with (folder / sha256).open("wb") as file:
        file.truncate(size_bytes)
    place = tmp_path / "blobs" / "sha256"
    command = [sys.executable, "-c", _TAKER, str(tmp_path), sha256, str(size_bytes)]
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            taker = await nursery.start(partial(trio.run_process, command, check=False))
            while not [path for path in (place.iterdir() if place.is_dir() else ()) if path.stat().st_size]:
                await trio.sleep(0.005)
            taker.kill()
    (left,) = place.iterdir()
    assert left.suffix == ".tmp"
    assert 0 < left.stat().st_size < size_bytes
    await inbox.keep_blobs([sha256])
    assert list(place.iterdir()) == []


async def test_no_blob_takes_the_last_of_the_disk(inbox: DirectoryInbox, tmp_path: Path) -> None:
    folder = tmp_path / "inbox" / "1" / "blobs" / "sha256"
    folder.mkdir(parents=True)
    size_bytes = shutil.disk_usage(tmp_path).free - ROOM_KEPT_BYTES // 2
    blob = Blob(path=blob_path("a" * 64), size_bytes=size_bytes, sha256="a" * 64)
    with (folder / ("a" * 64)).open("wb") as file:
        file.truncate(size_bytes)
    assert await inbox.take_blob("1", blob) is BundleRefusal.NO_ROOM
    assert list((tmp_path / "blobs" / "sha256").iterdir()) == []


def test_too_many_reports_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "outbox").mkdir()
    for number in range(REPORTS_READ_MAX + 1):
        (tmp_path / "outbox" / f"report-{number}.json").touch()
    with pytest.raises(PortFault, match="elsewhere"):
        read_reports(tmp_path / "outbox")


def test_reports_that_fill_the_memory_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "outbox").mkdir()
    for number in range((REPORTS_BYTES_MAX >> 22) + 1):
        with (tmp_path / "outbox" / f"report-{number}.json").open("wb") as file:
            file.truncate(1 << 22)
    with pytest.raises(PortFault, match="elsewhere"):
        read_reports(tmp_path / "outbox")


async def test_who_stops_does_not_wait_for_a_medium_that_answers_never(tmp_path: Path) -> None:
    begun, answers = threading.Event(), threading.Event()

    class Slow(PosixPath):
        def __truediv__(self, name: object) -> Path:  # type: ignore[override]  # as few as are used here
            begun.set()
            assert answers.wait(30)
            return Path(self).joinpath(str(name))

    outbox = Slow(tmp_path / "outbox")
    inbox = DirectoryInbox(inbox=tmp_path, outbox=outbox, blobs=tmp_path, counter=tmp_path / "counter")
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inbox.report, 1, b"one")
            await trio.to_thread.run_sync(begun.wait)
            nursery.cancel_scope.cancel()
        answers.set()
        await inbox.report(2, b"two")
    assert [data for _, data in read_reports(tmp_path / "outbox")] == [b"one", b"two"], "one after the other"


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
async def test_what_is_no_counter_counts_nothing(inbox: DirectoryInbox, tmp_path: Path, kind: str) -> None:
    counter = tmp_path / "counter"
    match kind:
        case "pipe":
            os.mkfifo(counter)
        case "folder":
            counter.mkdir()
        case _:
            counter.symlink_to("/dev/null")
    with pytest.raises(PortFault, match="counter"):
        await inbox.floor()
    with pytest.raises(PortFault, match="counter"):
        await inbox.raise_floor(1)


async def test_a_counter_that_a_power_loss_cut_goes_on(inbox: DirectoryInbox, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    await inbox.raise_floor(7)
    counter.write_bytes(counter.read_bytes() + b"\n123")
    assert await inbox.floor() == 7
    await inbox.raise_floor(8)
    assert await inbox.floor() == 123, "a number that may have counted does: too high shuts out, too low lets in"


async def test_a_counter_that_could_be_written_in_part_has_not_risen(inbox: DirectoryInbox, tmp_path: Path) -> None:
    await inbox.raise_floor(7)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "counter").stat().st_size + 2, limits[1]))
    try:
        with pytest.raises(PortUnavailable, match="counter"):
            await inbox.raise_floor(12)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert await inbox.floor() == 7
    await inbox.raise_floor(12)
    assert await inbox.floor() == 12


async def test_a_counter_that_others_may_write_is_refused(inbox: DirectoryInbox, tmp_path: Path) -> None:
    await inbox.raise_floor(1)
    (tmp_path / "counter").chmod(0o666)
    with pytest.raises(PortFault, match="chmod go-w"):
        await inbox.raise_floor(2)


async def test_what_no_node_writes_is_read_as_nothing(inbox: DirectoryInbox, tmp_path: Path) -> None:
    await inbox.report(1, b"one")
    (tmp_path / "outbox" / "report-2.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "outbox" / "report-3.json")
    shown = dict(read_reports(tmp_path / "outbox"))
    assert shown["report-000000000001.json"] == b"one"
    assert shown["report-3.json"] == b""
