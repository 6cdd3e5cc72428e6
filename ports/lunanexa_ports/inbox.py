"""Driven port: what people carry to and from a node without a network, and the counter that lies beside its policy."""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from lunanexa_core.southbound.bundle import Blob, BundleRefusal
from lunanexa_core.southbound.documents import SignedDocument

BUNDLE_BYTES_MAX: Final = 1 << 20
"""Longest ``bundle.json`` that is read."""
BUNDLES_MAX: Final = 256
"""So many bundles of an inbox are looked at."""


class Inbox(Protocol):
    """An inbox of bundles, an outbox of reports, the node's own place for blobs, and its counter. The inbox is only
    read, and may be gone, replaced or half written at any time; nothing in it is believed.

    Raises ``PortUnavailable`` (not there, no room, no right) with nothing done or all of it, ``PortFault`` where no
    retry helps; the message names the place and what mends it. Cancellation waits for no medium and leaves nothing half
    done; what was begun may yet be done to its end."""

    @abstractmethod
    async def names(self) -> Sequence[str]:
        """The bundles in the inbox, by name in order, the last :data:`BUNDLES_MAX`. An inbox that is not there is
        empty: it may be a medium that is not plugged in."""

    @abstractmethod
    async def read(self, name: str) -> SignedDocument | BundleRefusal | None:
        """The bytes of a bundle as signed, not verified; ``NOT_READABLE`` for what can't be one; ``None`` for one
        that is gone, or not whole yet."""

    @abstractmethod
    async def take_blob(self, name: str, blob: Blob) -> BundleRefusal | None:
        """Puts a blob of that bundle in the node's own place under its hash, whole and durable or not at all, once
        size and SHA-256 were found right. One that is there already, and right, needs none in the bundle.
        ``BLOB_MISSING``, ``BLOB_CHANGED`` or ``NO_ROOM`` otherwise."""

    @abstractmethod
    async def keep_blobs(self, wanted: Collection[str]) -> None:
        """Removes from the node's own place every blob whose hash is not ``wanted``, and what blobs that were not
        taken to their end left there. Who is killed meanwhile has removed a part of them."""

    @abstractmethod
    async def floor(self) -> int:
        """The counter: the highest generation that was ever in force here. 0 before the first."""

    @abstractmethod
    async def raise_floor(self, generation: int) -> None:
        """Sets the counter to ``generation`` if that is higher; durable when this returns. Raises also when nothing
        needs to be written and nothing could be: who asks at the start learns it there."""

    @abstractmethod
    async def report(self, number: int, report: bytes) -> None:
        """Puts a report in the outbox, whole, under its ``number``; the oldest go, so that there are at most
        ``REPORTS_KEPT`` (:mod:`lunanexa_core.southbound.outbox`), and those of a higher number: the node has lost the
        store that it counted in, and they would pass for newer."""
