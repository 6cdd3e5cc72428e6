"""Media as directories and in memory pass the one suite."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from lunanexa_adapters.files.bundle_files import BUNDLE, SIGNATURE, signature_bytes
from lunanexa_adapters.files.inbox import DirectoryInbox, read_reports
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_ports.conformance import inbox
from lunanexa_ports.inbox import Inbox
from lunanexa_simulation.inbox import SimulatedBundle, SimulatedInbox, SimulatedMedia


class InMemory(inbox.Media):
    def __init__(self) -> None:
        self._media = SimulatedMedia()

    def open(self) -> Inbox:
        return SimulatedInbox(self._media)

    def put(self, name: str, document: SignedDocument, blobs: Mapping[str, bytes]) -> None:
        self._media.bundles[name] = SimulatedBundle(document=document, blobs=dict(blobs))

    def spoil(self, name: str) -> None:
        self._media.bundles[name].document = None

    def half(self, name: str) -> None:
        self._media.bundles[name].whole = False

    def unplug(self) -> None:
        self._media.plugged_in = False

    def taken(self) -> Mapping[str, bytes]:
        return self._media.taken

    def reports(self) -> Mapping[int, bytes]:
        return self._media.reports

    def break_all(self) -> None:
        self._media.unavailable = True


class Directories(inbox.Media):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._inbox = folder / "inbox"
        self._inbox.mkdir()

    def open(self) -> Inbox:
        return DirectoryInbox(
            inbox=self._inbox,
            outbox=self._folder / "outbox",
            blobs=self._folder / "blobs",
            counter=self._folder / "etc" / "counter",
        )

    def put(self, name: str, document: SignedDocument, blobs: Mapping[str, bytes]) -> None:
        folder = self._inbox / name
        folder.mkdir()
        (folder / BUNDLE).write_bytes(document.payload)
        (folder / SIGNATURE).write_bytes(signature_bytes(document))
        for path, content in blobs.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)

    def spoil(self, name: str) -> None:
        (self._inbox / name / SIGNATURE).write_bytes(b"\x00\xff")

    def half(self, name: str) -> None:
        (self._inbox / name / SIGNATURE).unlink()

    def unplug(self) -> None:
        shutil.rmtree(self._inbox)

    def taken(self) -> Mapping[str, bytes]:
        place = self._folder / "blobs" / "sha256"
        return {path.name: path.read_bytes() for path in place.iterdir()}

    def reports(self) -> Mapping[int, bytes]:
        found = read_reports(self._folder / "outbox")
        return {int(name.removeprefix("report-").removesuffix(".json")): data for name, data in found}

    def break_all(self) -> None:
        for name in ("outbox", "blobs", "etc"):
            place = self._folder / name
            shutil.rmtree(place, ignore_errors=True)
            place.touch()


@pytest.fixture(params=["simulated", "directories"])
def media(request: pytest.FixtureRequest, tmp_path: Path) -> inbox.Media:
    if request.param == "simulated":
        return InMemory()
    (tmp_path / "etc").mkdir()
    return Directories(tmp_path)


@pytest.mark.parametrize("check", inbox.CHECKS, ids=lambda check: check.__name__)
async def test_inbox(check: inbox.Check, media: inbox.Media) -> None:
    await check(media)
