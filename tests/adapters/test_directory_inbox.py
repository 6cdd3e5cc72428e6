"""Media as directories: what only files can be."""

import json
import os
from pathlib import Path

import pytest

from lunanexa_adapters.crypto.signing import Ed25519Signer, Ed25519Verifier
from lunanexa_adapters.files.bundle_files import BUNDLE, SIGNATURE, describe_blob, read_whole_bundle, write_bundle
from lunanexa_adapters.files.inbox import DirectoryInbox, read_reports
from lunanexa_core.southbound.bundle import BundleRefusal
from lunanexa_ports.errors import PortFault


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


async def test_a_counter_that_a_power_loss_cut_goes_on(inbox: DirectoryInbox, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    await inbox.raise_floor(7)
    counter.write_bytes(counter.read_bytes() + b"\n123")
    assert await inbox.floor() == 7
    await inbox.raise_floor(8)
    assert await inbox.floor() == 123, "a number that may have counted does: too high shuts out, too low lets in"


async def test_a_counter_that_others_may_write_is_refused(inbox: DirectoryInbox, tmp_path: Path) -> None:
    await inbox.raise_floor(1)
    (tmp_path / "counter").chmod(0o666)
    with pytest.raises(PortFault, match="chmod 600"):
        await inbox.raise_floor(2)


async def test_what_no_node_writes_is_read_as_nothing(inbox: DirectoryInbox, tmp_path: Path) -> None:
    await inbox.report(1, b"one")
    (tmp_path / "outbox" / "report-2.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "outbox" / "report-3.json")
    shown = dict(read_reports(tmp_path / "outbox"))
    assert shown["report-000000000001.json"] == b"one"
    assert shown["report-3.json"] == b""
