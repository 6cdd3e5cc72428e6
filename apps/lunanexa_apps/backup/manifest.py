"""What a backup says of itself: the manifest, its signature, and the public parts of keys."""

import hashlib
from typing import Final

import attrs

from lunanexa_apps.codec import encode
from lunanexa_core.canonical import JsonValue
from lunanexa_core.contract.journal import HeadDocument
from lunanexa_core.ids import ClusterId, KeyId, NodeId, TenantId
from lunanexa_core.journal import Head, PrunePoint
from lunanexa_core.keys import Role
from lunanexa_core.state import State
from lunanexa_ports.signing import Signer

BACKUP_SCHEMA: Final = "lunanexa.backup.v1"
ROWS: Final = "rows.jsonl.gz"
"""All rows, as ``lunanexa journal export`` writes them, compressed."""
KEYS: Final = "keys.json"
PRUNING: Final = "pruning.json"
"""The row by which the ledger was pruned last: what is left of it is read by that. Only where it was."""
MANIFEST: Final = "manifest.json"
SIGNATURE: Final = "manifest.sig"
SIGNED_MEMBERS: Final = (ROWS, KEYS, PRUNING)


@attrs.frozen(kw_only=True)
class Member:
    """A file in the bundle, by its SHA-256 (hex) and its length."""

    name: str
    sha256: str
    size_bytes: int


@attrs.frozen(kw_only=True)
class Manifest:
    """``rows`` counts by chain. ``state_digest`` is that of the state after the last row; programs of one ``version``
    can compare it. ``pruned`` is where the ledger begins."""

    schema: str = BACKUP_SCHEMA
    cluster: ClusterId
    made_wall_ms: int
    version: str
    head: HeadDocument
    rows: dict[str, int]
    state_digest: str
    pruned: PrunePoint | None
    members: tuple[Member, ...]


@attrs.frozen(kw_only=True)
class ManifestSignature:
    """Ed25519 over the manifest's bytes. Both are hex."""

    key_id: str
    public_key: str
    signature: str


@attrs.frozen(kw_only=True)
class KeySummary:
    """A key in force, without its digest."""

    key: KeyId
    tenant: TenantId
    name: str | None
    roles: tuple[Role, ...]
    expires_wall_ms: int | None


@attrs.frozen(kw_only=True)
class NodeSummary:
    """A node, and the public key by which its reports are verified."""

    node: NodeId
    public_key: str | None


@attrs.frozen(kw_only=True)
class PublicKeys:
    """The public parts of all keys as of the last row, for people: what counts stands in the rows. The signing key is
    that of the controller's documents, and of the manifest."""

    signing_key_id: str
    signing_key: str
    api_keys: tuple[KeySummary, ...]
    nodes: tuple[NodeSummary, ...]


def public_keys(state: State, signing_key_id: str, signing_key: str) -> PublicKeys:
    """Those of ``state``."""
    return PublicKeys(
        signing_key_id=signing_key_id,
        signing_key=signing_key,
        api_keys=tuple(
            KeySummary(
                key=key.key,
                tenant=key.tenant,
                name=key.name,
                roles=tuple(sorted(key.roles, key=lambda role: role.value)),
                expires_wall_ms=key.expires_wall_ms,
            )
            for _, key in sorted(state.keys.items())
        ),
        nodes=tuple(NodeSummary(node=node.node, public_key=node.public_key) for _, node in sorted(state.nodes.items())),
    )


def sign_manifest(manifest: bytes, signer: Signer) -> bytes:
    """The signature's file."""
    signed = signer.sign(manifest)
    return encode(
        ManifestSignature(key_id=signed.key_id, public_key=signer.public_key, signature=signed.signature.hex())
    )


def head_document(head: Head) -> HeadDocument:
    """A head as documents tell it."""
    return HeadDocument(sequence=head.sequence, epoch=head.epoch, journal=head.journal, ledger=head.ledger)


def member_of(name: str, data: bytes) -> Member:
    """A file whose bytes are at hand."""
    return Member(name=name, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


def summary(manifest: Manifest) -> dict[str, JsonValue]:
    """What a person or a program wants to know of a backup."""
    return {
        "cluster": manifest.cluster,
        "made_wall_ms": manifest.made_wall_ms,
        "version": manifest.version,
        "sequence": manifest.head.sequence,
        "epoch": manifest.head.epoch,
        "rows": dict(manifest.rows),
        "state_digest": manifest.state_digest,
        "pruned_until": None if manifest.pruned is None else manifest.pruned.until,
    }
