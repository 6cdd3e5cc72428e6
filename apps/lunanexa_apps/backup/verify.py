"""Verifies a backup: what it holds, who signed it, and that its rows make the state that it says."""

from collections import Counter
from collections.abc import Callable
from typing import IO, Final, TypeVar

import attrs

from lunanexa_apps.backup.bundle import Bundle, BundleDamaged
from lunanexa_apps.backup.create import PROGRESS_ROWS, Progress
from lunanexa_apps.backup.manifest import (
    BACKUP_SCHEMA,
    KEYS,
    MANIFEST,
    PRUNING,
    SIGNATURE,
    SIGNED_MEMBERS,
    Manifest,
    ManifestSignature,
    member_of,
    public_keys,
    summary,
)
from lunanexa_apps.codec import CodecError, decode, encode
from lunanexa_apps.controller.replay import Replay
from lunanexa_apps.controller.rows import Pruning, pruning_of
from lunanexa_apps.journal_rows import row_of_document
from lunanexa_core.canonical import JsonValue, NotCanonical, strict_json
from lunanexa_core.events import UnknownEvent
from lunanexa_core.journal import Chain, PrunePoint, chain_hash
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_core.state_digest import state_digest
from lunanexa_ports.errors import PortFault
from lunanexa_ports.signing import Verifier

T = TypeVar("T")
_PROBLEMS_MAX: Final = 20


@attrs.define(kw_only=True)
class Verified:
    """What was found. ``signer``: the public key that the signature was verified by; ``origin``: whether it is the one
    that was asked for, ``None``: none was. ``replayed``: whether the state's digest was compared."""

    manifest: Manifest | None = None
    signature: ManifestSignature | None = None
    origin: bool | None = None
    replayed: bool = False
    problems: list[str] = attrs.Factory(list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def document(self) -> dict[str, JsonValue]:
        """All of it, for programs."""
        return {
            "ok": self.ok,
            "problems": list(self.problems[:_PROBLEMS_MAX]),
            "key_id": None if self.signature is None else self.signature.key_id,
            "public_key": None if self.signature is None else self.signature.public_key,
            "origin": self.origin,
            "state_compared": self.replayed,
            **({} if self.manifest is None else summary(self.manifest)),
        }


def verify_backup(
    file: IO[bytes], verifier: Verifier, *, public_key: str | None, version: str, progress: Progress
) -> Verified:
    """Verifies the bundle in ``file``, all of it. ``public_key`` (hex) is the one that must have signed; ``None``:
    whichever it names. ``version`` is this program's. Raises ``OSError`` as the file does."""
    found = Verified()
    try:
        bundle = Bundle(file)
        signed = _read(found, SIGNATURE, lambda: decode(ManifestSignature, bundle.read(SIGNATURE)))
        data = bundle.read(MANIFEST)
        found.signature = signed
        if signed is not None:
            _check_signature(found, verifier, data, signed, public_key)
        found.manifest = _read(found, MANIFEST, lambda: decode(Manifest, data))
        if found.manifest is None:
            return found
        if found.manifest.schema != BACKUP_SCHEMA:
            found.problems.append(
                f"{MANIFEST} is of the form {found.manifest.schema!r}; this program reads {BACKUP_SCHEMA}"
            )
            return found
        _check_members(found, bundle, found.manifest)
        _check_rows(found, bundle, found.manifest, version, progress)
    except BundleDamaged as error:
        found.problems.append(str(error))
    return found


def _read(found: Verified, name: str, reading: Callable[[], T]) -> T | None:
    try:
        return reading()
    except CodecError as error:
        found.problems.append(f"{name} can't be read: {error}")
        return None


def _check_signature(
    found: Verified, verifier: Verifier, data: bytes, signed: ManifestSignature, public_key: str | None
) -> None:
    try:
        document = SignedDocument(payload=data, key_id=signed.key_id, signature=bytes.fromhex(signed.signature))
    except ValueError:
        found.problems.append(f"{SIGNATURE} holds no signature")
        return
    if not verifier.verify(document, {signed.key_id: signed.public_key}):
        found.problems.append(f"the signature is not that of {MANIFEST}: one of the two was changed")
        return
    if public_key is not None:
        found.origin = verifier.verify(document, {signed.key_id: public_key})
        if not found.origin:
            found.problems.append(f"it is signed by another key ({signed.key_id}) than the one it was compared with")


def _check_members(found: Verified, bundle: Bundle, manifest: Manifest) -> None:
    told = {member.name: member for member in manifest.members}
    for name in SIGNED_MEMBERS:
        if (name in told) != (name in bundle.names):
            found.problems.append(f"{name} is {'missing' if name in told else 'there, and not in the manifest'}")
        elif name in told and (actual := bundle.measure(name)) != told[name]:
            what = "bytes are others" if actual.size_bytes == told[name].size_bytes else "length is another"
            found.problems.append(f"{name} is damaged: its {what} than the manifest says")


def pruning_in(bundle: Bundle) -> Pruning | None:
    """By which the ledger was pruned, as the bundle's copy of that row says. Raises :class:`BundleDamaged`."""
    if PRUNING not in bundle.names:
        return None
    try:
        row = row_of_document(strict_json(bundle.read(PRUNING)))
        if row.hash != chain_hash(row.previous, row.record):
            raise BundleDamaged(f"{PRUNING}: its hash is not that of the record")
        return pruning_of(row)
    except BundleDamaged:
        raise
    except (CodecError, NotCanonical, PortFault) as error:
        raise BundleDamaged(f"{PRUNING} can't be read: {error}") from None


def _check_rows(found: Verified, bundle: Bundle, manifest: Manifest, version: str, progress: Progress) -> None:
    pruning = pruning_in(bundle)
    point: PrunePoint | None = None if pruning is None else pruning.point
    replay, counts = Replay(pruning=pruning), Counter[Chain]()
    with bundle.rows() as lines:
        if not point == lines.point == manifest.pruned:
            found.problems.append("the rows, their pruning and the manifest tell of different prune points")
            return
        try:
            for row in lines:
                replay.feed(row)
                counts[row.chain] += 1
                if sum(counts.values()) % PROGRESS_ROWS == 0:
                    progress(row.sequence, manifest.head.sequence)
        except BundleDamaged:
            raise
        except (PortFault, UnknownEvent) as error:
            found.problems.append(str(error).removesuffix("; restore a backup"))
            return
    _compare(found, manifest, replay, counts, version)
    if lines.end != replay.head:
        found.problems.append("the last line of the rows does not tell where they end")


def _compare(found: Verified, manifest: Manifest, replay: Replay, counts: Counter[Chain], version: str) -> None:
    told, head, state = manifest.head, replay.head, replay.state
    if (told.sequence, told.epoch, told.journal, told.ledger) != (head.sequence, head.epoch, head.journal, head.ledger):
        found.problems.append(f"the rows end at {head.sequence}, the manifest's head stands at {told.sequence}")
        return
    if manifest.rows != {chain.value: counts[chain] for chain in Chain}:
        found.problems.append("the manifest counts other rows than there are")
    if state.cluster != manifest.cluster:
        found.problems.append(f"the rows are of the cluster {state.cluster}, the manifest of {manifest.cluster}")
    if manifest.version == version:
        found.replayed = True
        if state_digest(state) != manifest.state_digest:
            found.problems.append("the rows make another state than the manifest says")
        signed = found.signature
        names = {member.name: member for member in manifest.members}
        if signed is not None and KEYS in names:
            keys = encode(public_keys(state, signed.key_id, signed.public_key))
            if names[KEYS] != member_of(KEYS, keys):
                found.problems.append(f"{KEYS} tells of other keys than the rows")
