"""Media in memory: what people put in an inbox and find in an outbox. They outlive the agents that use them."""

import hashlib
from collections.abc import Collection, Sequence

import attrs
import trio

from lunanexa_core.southbound.bundle import Blob, BundleRefusal
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_core.southbound.outbox import REPORTS_KEPT
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.inbox import BUNDLE_BYTES_MAX, BUNDLES_MAX, Inbox


@attrs.define(kw_only=True)
class SimulatedBundle:
    """One folder of an inbox; ``document`` is ``None`` where the signature's file is something else."""

    document: SignedDocument | None
    blobs: dict[str, bytes] = attrs.Factory(dict)
    whole: bool = True


@attrs.define(kw_only=True)
class SimulatedMedia:
    """What is there, and its faults, which may be set at any time."""

    bundles: dict[str, SimulatedBundle] = attrs.Factory(dict)
    taken: dict[str, bytes] = attrs.Factory(dict)
    reports: dict[int, bytes] = attrs.Factory(dict)
    floor: int = 0
    plugged_in: bool = True
    damaged: bool = False
    """The inbox is there and can't be read."""
    room_bytes: int | None = None
    """For blobs; ``None``: any number."""
    unavailable: bool = False
    """Neither the counter nor the outbox nor the place of blobs can be used."""
    delay_ms: int = 0
    """How long each write takes, on Trio's clock."""


class SimulatedInbox(Inbox):
    """One agent's use of media, until it dies."""

    def __init__(self, media: SimulatedMedia) -> None:
        self._media = media
        self._dead = False

    def kill(self) -> None:
        """The agent is killed, and nothing it still tries gets out. Idempotent."""
        self._dead = True

    async def names(self) -> Sequence[str]:
        await trio.lowlevel.checkpoint()
        if self._media.damaged:
            raise PortUnavailable("the simulated inbox can't be read: mend it")
        return sorted(self._bundles())[-BUNDLES_MAX:]

    async def read(self, name: str) -> SignedDocument | BundleRefusal | None:
        await trio.lowlevel.checkpoint()
        bundle = self._bundles().get(name)
        if bundle is None or not bundle.whole:
            return None
        if bundle.document is None or len(bundle.document.payload) > BUNDLE_BYTES_MAX:
            return BundleRefusal.NOT_READABLE
        return bundle.document

    async def take_blob(self, name: str, blob: Blob) -> BundleRefusal | None:
        await self._write()
        if blob.sha256 in self._media.taken:
            return None
        bundle = self._bundles().get(name)
        content = None if bundle is None else bundle.blobs.get(blob.path)
        if content is None:
            return BundleRefusal.BLOB_MISSING
        if (len(content), hashlib.sha256(content).hexdigest()) != (blob.size_bytes, blob.sha256):
            return BundleRefusal.BLOB_CHANGED
        held = sum(map(len, self._media.taken.values()))
        if self._media.room_bytes is not None and held + len(content) > self._media.room_bytes:
            return BundleRefusal.NO_ROOM
        self._media.taken[blob.sha256] = content
        return None

    async def keep_blobs(self, wanted: Collection[str]) -> None:
        await trio.lowlevel.checkpoint()
        self._check()
        for sha256 in sorted(self._media.taken.keys() - set(wanted)):
            await self._write()
            del self._media.taken[sha256]

    async def floor(self) -> int:
        await trio.lowlevel.checkpoint()
        self._check()
        return self._media.floor

    async def raise_floor(self, generation: int) -> None:
        await self._write()
        self._media.floor = max(self._media.floor, generation)

    async def report(self, number: int, report: bytes) -> None:
        await self._write()
        self._media.reports[number] = report
        own = sorted(one for one in self._media.reports if one <= number)
        self._media.reports = {one: self._media.reports[one] for one in own[-REPORTS_KEPT:]}

    def _bundles(self) -> dict[str, SimulatedBundle]:
        return self._media.bundles if self._media.plugged_in else {}

    async def _write(self) -> None:
        self._check()
        await trio.sleep(self._media.delay_ms / 1_000)
        self._check()

    def _check(self) -> None:
        if self._dead:
            raise PortUnavailable("the simulated process is dead")
        if self._media.unavailable:
            raise PortUnavailable("the simulated media can't be used: make them available")
