"""Which bundle is in force: what lies in the inbox is verified, put in order and taken one after another. Kept over the
agent's death."""

import hashlib
from collections.abc import Sequence
from typing import Final

import attrs
import structlog

from lunanexa_apps.codec import CodecError, decode, encode
from lunanexa_apps.node.settings import LocalPorts
from lunanexa_core.ids import ClusterId, NodeId
from lunanexa_core.southbound.bundle import Blob, Bundle, BundleRefusal, TakenBundle, check_bundle, in_force
from lunanexa_core.southbound.documents import DesiredState, SignedDocument
from lunanexa_core.southbound.outbox import RefusedBundle
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.inbox import Inbox

_FACT: Final = "bundle"
BLOBS_AGAIN_MS: Final = 30_000
"""Blobs that were not right are looked at again so much later: they may be long, and somebody may copy them now."""
_log = structlog.get_logger()


@attrs.frozen(kw_only=True)
class _Kept:
    """The fact in the node store."""

    document: SignedDocument
    before: tuple[str, ...]


@attrs.frozen
class _Offer:
    """What lies in one folder of the inbox."""

    name: str
    digest: str
    document: SignedDocument
    bundle: Bundle


class Bundles:
    """Of one agent process. ``authority``: the raw Ed25519 public key, hex, of who signs bundles."""

    def __init__(self, ports: LocalPorts, inbox: Inbox, node: NodeId, authority: str) -> None:
        self._ports = ports
        self._inbox = inbox
        self._node = node
        # The name of a key is derived from the key, so that none has to be agreed on.
        self._keys = {f"ed25519:{hashlib.sha256(bytes.fromhex(authority)).hexdigest()[:16]}": authority}
        self._floor = 0
        self._current: TakenBundle | None = None
        self._set_back: DesiredState | None = None
        """What shall run where the store is older than the counter, until a bundle is in force."""
        self._wrong_blobs: dict[str, tuple[BundleRefusal, int]] = {}
        """By the bundle's digest, and when they are looked at again."""
        self._judged: dict[tuple[str, bytes], Bundle | BundleRefusal] = {}
        self.refused: tuple[RefusedBundle, ...] = ()
        """Of the last look. Those that were in force once are not among them."""

    @property
    def cluster(self) -> ClusterId | None:
        return None if self._current is None else self._current.bundle.cluster

    @property
    def bundle(self) -> Bundle | None:
        """The one in force."""
        return None if self._current is None else self._current.bundle

    @property
    def digest(self) -> str | None:
        """Of the bundle in force."""
        return None if self._current is None else self._current.digest

    @property
    def desired(self) -> DesiredState | None:
        """What shall run; ``None``: what does. There is no lease, so that nothing ends when one has lapsed."""
        if self._current is None:
            return self._set_back
        document = self._current.bundle.document
        return attrs.evolve(
            document, assignments=tuple(attrs.evolve(one, cut_off_keep_ms=None) for one in document.assignments)
        )

    async def load(self) -> None:
        """What an earlier agent took. Raises as the store and the counter do."""
        self._floor = await self._inbox.floor()
        kept = await self._ports.store.get(_FACT)
        taken = None if kept is None else self._remembered(kept)
        self._current = in_force(taken, self._floor)
        if taken is not None and self._current is None:
            _log.error("store_set_back", generation=taken.bundle.generation, counter=self._floor)
            # Its records tell of engines from before too, and a record is as good as a start.
            document = taken.bundle.document
            self._set_back = DesiredState(
                cluster=document.cluster, node=document.node, epoch=0, generation=0, assignments=()
            )
        # The earlier agent may have died between the store's word and the counter's; and it must be usable.
        await self._raise(0 if self._current is None else self._current.bundle.generation)

    async def look(self) -> bool:
        """Takes all that may be in force, one after another; whether one was. Raises as the ports do."""
        offers, refused = await self._offers()
        took = False
        for offer in sorted(offers, key=lambda one: (one.bundle.generation, one.name)):
            refusal = await self._offer(offer)
            if refusal is not None:
                refused.append(RefusedBundle(name=offer.name, digest=offer.digest, refusal=refusal.value))
            took = took or refusal is None
        refused.sort(key=lambda one: one.name)
        for one in refused:
            if one not in self.refused:
                _log.warning("bundle_refused", name=one.name, refusal=one.refusal)
        self.refused = tuple(refused)
        return took

    async def _offers(self) -> tuple[list[_Offer], list[RefusedBundle]]:
        offers: list[_Offer] = []
        refused: list[RefusedBundle] = []
        judged: dict[tuple[str, bytes], Bundle | BundleRefusal] = {}
        for name in await self._inbox.names():
            found = await self._inbox.read(name)
            if found is None:
                continue
            if isinstance(found, BundleRefusal):
                refused.append(RefusedBundle(name=name, digest="", refusal=found.value))
                continue
            digest = hashlib.sha256(found.payload).hexdigest()
            if self._current is not None and digest in (self._current.digest, *self._current.before):
                continue
            key = digest, found.key_id.encode() + found.signature
            bundle = judged[key] = self._judged.get(key) or self._read(found)
            if isinstance(bundle, BundleRefusal):
                refused.append(RefusedBundle(name=name, digest=digest, refusal=bundle.value))
            else:
                offers.append(_Offer(name, digest, found, bundle))
        self._judged = judged
        here = {digest for digest, _ in judged}
        self._wrong_blobs = {digest: seen for digest, seen in self._wrong_blobs.items() if digest in here}
        return offers, refused

    async def _offer(self, offer: _Offer) -> BundleRefusal | None:
        current, bundle = self._current, offer.bundle
        if current is not None and offer.digest == current.digest:
            return None  # Another folder with the same.
        refusal = check_bundle(current, self._floor, bundle, offer.digest, node=self._node)
        if refusal is None:
            refusal = await self._take_blobs(offer)
        if refusal is not None:
            return refusal
        taken = TakenBundle(bundle=bundle, digest=offer.digest)
        if current is not None:
            taken = current.followed_by(bundle, offer.digest)
        await self._ports.store.put(_FACT, encode(_Kept(document=offer.document, before=taken.before)))
        # After the store: a counter above an empty store would shut the very bundle out that it counts.
        await self._raise(bundle.generation)
        self._current = taken
        _log.info("bundle_taken", name=offer.name, generation=bundle.generation, digest=offer.digest)
        return None

    async def _take_blobs(self, offer: _Offer) -> BundleRefusal | None:
        refusal, again_at_ms = self._wrong_blobs.get(offer.digest, (None, 0))
        if refusal is not None and self._ports.clock.now().mono_ms < again_at_ms:
            return refusal
        for blob in offer.bundle.blobs:
            refusal = await self._take_blob(offer.name, blob)
            if refusal is not None:
                again_at_ms = self._ports.clock.now().mono_ms + BLOBS_AGAIN_MS
                self._wrong_blobs[offer.digest] = (refusal, again_at_ms)
                return refusal
        return None

    async def _take_blob(self, name: str, blob: Blob) -> BundleRefusal | None:
        try:
            return await self._inbox.take_blob(name, blob)
        except PortUnavailable as error:
            # Gigabytes may have been copied in vain: not again at once, and whoever reads the outbox learns of it.
            _log.error("blob_not_placed", name=name, reason=str(error))
            return BundleRefusal.BLOB_UNPLACED

    async def _raise(self, generation: int) -> None:
        await self._inbox.raise_floor(generation)
        self._floor = max(self._floor, generation)

    def _remembered(self, kept: bytes) -> TakenBundle | None:
        try:
            fact = decode(_Kept, kept)
        except CodecError as error:
            _log.error("stored_bundle_unreadable", place=error.path, problem=error.problem)
            return None
        bundle = self._read(fact.document)
        if isinstance(bundle, BundleRefusal) or bundle.node != self._node:
            _log.error("stored_bundle_refused", refusal=bundle.value if isinstance(bundle, BundleRefusal) else "node")
            return None
        digest = hashlib.sha256(fact.document.payload).hexdigest()
        return TakenBundle(bundle=bundle, digest=digest, before=fact.before)

    def _read(self, document: SignedDocument) -> Bundle | BundleRefusal:
        """Verified first, parsed after."""
        if document.key_id not in self._keys:
            return BundleRefusal.UNKNOWN_KEY
        if not self._ports.verifier.verify(document, self._keys):
            return BundleRefusal.BAD_SIGNATURE
        try:
            return decode(Bundle, document.payload)
        except CodecError as error:
            _log.error("bundle_unreadable", place=error.path, problem=error.problem)
            return BundleRefusal.NOT_READABLE


def worst_of(refused: Sequence[RefusedBundle]) -> str | None:
    """Of bundles that are not followed, why the last one is not; ``None``: there are none."""
    return refused[-1].refusal if refused else None
