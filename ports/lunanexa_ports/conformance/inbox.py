"""What every inbox must do, tried on media that are made for it and on a node that has nothing."""

import hashlib
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeAlias

from lunanexa_core.southbound.bundle import Blob, BundleRefusal, blob_path
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_core.southbound.outbox import REPORTS_KEPT
from lunanexa_ports.errors import PortError
from lunanexa_ports.inbox import BUNDLE_BYTES_MAX, BUNDLES_MAX, Inbox

DOCUMENT: Final = SignedDocument(payload=b'{"generation": 1}', key_id="ed25519:0123", signature=bytes(range(64)))
CONTENT: Final = bytes(range(256)) * 300
BLOB: Final = Blob(
    path=blob_path(hashlib.sha256(CONTENT).hexdigest()),
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


class Media(Protocol):
    """One node's media, as people handle them."""

    @abstractmethod
    def open(self) -> Inbox:
        """As each agent process would."""

    @abstractmethod
    def put(self, name: str, document: SignedDocument, blobs: Mapping[str, bytes]) -> None:
        """Puts a bundle in the inbox; ``blobs`` by their path, whatever they hold."""

    @abstractmethod
    def spoil(self, name: str) -> None:
        """Makes the signature's file of a bundle something else than one."""

    @abstractmethod
    def half(self, name: str) -> None:
        """Takes the signature's file of a bundle away."""

    @abstractmethod
    def unplug(self) -> None:
        """Takes the inbox away."""

    @abstractmethod
    def taken(self) -> Mapping[str, bytes]:
        """The blobs in the node's own place, by hash."""

    @abstractmethod
    def reports(self) -> Mapping[int, bytes]:
        """What lies in the outbox, by number."""

    @abstractmethod
    def break_all(self) -> None:
        """From now on nothing of the outbox, the counter and the place of blobs can be used."""


Check: TypeAlias = Callable[[Media], Awaitable[None]]


async def check_an_empty_inbox(media: Media) -> None:
    inbox = media.open()
    assert list(await inbox.names()) == []
    assert await inbox.read("first") is None
    media.unplug()
    assert list(await inbox.names()) == []
    assert await inbox.read("first") is None
    assert await inbox.take_blob("first", BLOB) is BundleRefusal.BLOB_MISSING


async def check_bundles_as_they_were_put(media: Media) -> None:
    inbox = media.open()
    for name in ("b", "a", "a.1"):
        media.put(name, DOCUMENT, {})
    assert list(await inbox.names()) == ["a", "a.1", "b"]
    assert await inbox.read("a") == DOCUMENT


async def check_what_is_half_is_not_there_yet(media: Media) -> None:
    media.put("a", DOCUMENT, {})
    media.half("a")
    assert await media.open().read("a") is None


async def check_what_is_no_bundle(media: Media) -> None:
    media.put("a", DOCUMENT, {})
    media.spoil("a")
    long = SignedDocument(payload=b" " * (BUNDLE_BYTES_MAX + 1), key_id="k", signature=b"")
    media.put("b", long, {})
    inbox = media.open()
    assert await inbox.read("a") is BundleRefusal.NOT_READABLE
    assert await inbox.read("b") is BundleRefusal.NOT_READABLE


async def check_so_many_at_most(media: Media) -> None:
    for number in range(BUNDLES_MAX + 2):
        media.put(f"{number:04}", DOCUMENT, {})
    names = list(await media.open().names())
    assert (len(names), names[0], names[-1]) == (BUNDLES_MAX, "0002", f"{BUNDLES_MAX + 1:04}")


async def check_a_blob_is_taken_whole(media: Media) -> None:
    media.put("a", DOCUMENT, {BLOB.path: CONTENT})
    assert await media.open().take_blob("a", BLOB) is None
    assert media.taken() == {BLOB.sha256: CONTENT}
    media.unplug()
    assert await media.open().take_blob("a", BLOB) is None, "it is there already"


async def check_a_blob_that_is_not_as_told(media: Media) -> None:
    changed = bytes([CONTENT[0] ^ 1]) + CONTENT[1:]
    media.put("changed", DOCUMENT, {BLOB.path: changed})
    media.put("longer", DOCUMENT, {BLOB.path: CONTENT + b"."})
    media.put("shorter", DOCUMENT, {BLOB.path: CONTENT[:-1]})
    media.put("without", DOCUMENT, {})
    inbox = media.open()
    for name in ("changed", "longer", "shorter"):
        assert await inbox.take_blob(name, BLOB) is BundleRefusal.BLOB_CHANGED, name
    assert await inbox.take_blob("without", BLOB) is BundleRefusal.BLOB_MISSING
    assert media.taken() == {}


async def check_blobs_that_nobody_wants_go(media: Media) -> None:
    other = b"other"
    sha256 = hashlib.sha256(other).hexdigest()
    second = Blob(path=blob_path(sha256), size_bytes=len(other), sha256=sha256)
    media.put("a", DOCUMENT, {BLOB.path: CONTENT, second.path: other})
    inbox = media.open()
    await inbox.keep_blobs(())
    for blob in (BLOB, second):
        assert await inbox.take_blob("a", blob) is None
    await inbox.keep_blobs((BLOB.sha256, second.sha256))
    assert media.taken() == {BLOB.sha256: CONTENT, sha256: other}
    await media.open().keep_blobs((sha256, "0" * 64))
    assert media.taken() == {sha256: other}
    assert await inbox.take_blob("a", BLOB) is None, "it is taken anew"
    assert media.taken() == {BLOB.sha256: CONTENT, sha256: other}


async def check_the_counter_never_falls(media: Media) -> None:
    inbox = media.open()
    assert await inbox.floor() == 0
    for told, holds in ((0, 0), (3, 3), (2, 3), (3, 3), (1_000_000, 1_000_000)):
        await inbox.raise_floor(told)
        assert await inbox.floor() == await media.open().floor() == holds


async def check_reports_are_bounded(media: Media) -> None:
    inbox = media.open()
    for number in range(1, REPORTS_KEPT + 3):
        await inbox.report(number, f"report {number}".encode())
    reports = media.reports()
    assert sorted(reports) == list(range(3, REPORTS_KEPT + 3))
    assert reports[3] == b"report 3"


async def check_reports_of_a_lost_count_go(media: Media) -> None:
    inbox = media.open()
    for number in (1, 2, 70):
        await inbox.report(number, b"before")
    for number in (1, 2):
        await inbox.report(number, b"after")
        assert media.reports() == dict.fromkeys(range(1, number + 1), b"after")


async def check_a_broken_place_says_so(media: Media) -> None:
    media.put("a", DOCUMENT, {BLOB.path: CONTENT})
    media.break_all()
    inbox = media.open()
    uses: tuple[Callable[[], Awaitable[object]], ...] = (
        inbox.floor,
        lambda: inbox.raise_floor(0),
        lambda: inbox.report(1, b"report"),
        lambda: inbox.take_blob("a", BLOB),
        lambda: inbox.keep_blobs(()),
    )
    for use in uses:
        assert await _fails(use), use


async def _fails(use: Callable[[], Awaitable[object]]) -> bool:
    try:
        _ = await use()
    except PortError:
        return True
    return False


CHECKS: Final[tuple[Check, ...]] = (
    check_an_empty_inbox,
    check_bundles_as_they_were_put,
    check_what_is_half_is_not_there_yet,
    check_what_is_no_bundle,
    check_so_many_at_most,
    check_a_blob_is_taken_whole,
    check_a_blob_that_is_not_as_told,
    check_blobs_that_nobody_wants_go,
    check_the_counter_never_falls,
    check_reports_are_bounded,
    check_reports_of_a_lost_count_go,
    check_a_broken_place_says_so,
)
