"""What a node without a network says of itself: signed reports in its outbox, which people carry to an operator.

An operator knows a node by the fingerprint of its key alone, which ``lunanexa-node init`` printed. So a report brings
the key, and counts only when the key has the fingerprint that was registered.
"""

import hashlib
from typing import Final

import attrs

from lunanexa_core.ids import ClusterId, NodeId
from lunanexa_core.southbound.heartbeat import Heartbeat

REPORT_SCHEMA: Final = "lunanexa.outbox_report.v1"
REPORTS_KEPT: Final = 64
"""So many reports lie in an outbox; the oldest goes first."""


@attrs.frozen(kw_only=True)
class RefusedBundle:
    """A bundle in the inbox that is not followed."""

    name: str
    """Of its folder."""
    digest: str
    """SHA-256 of the bytes of its ``bundle.json``, hex."""
    refusal: str


@attrs.frozen(kw_only=True)
class OutboxReport:
    """What is signed."""

    schema: str = REPORT_SCHEMA
    node: NodeId
    cluster: ClusterId | None
    """``None`` before the first bundle."""
    number: int
    """From 1; it rises with each report of the node, over restarts."""
    wall_ms: int
    """The node's clock, which nobody sets for it."""
    bundle: str | None
    """The digest of the bundle in force."""
    refused: tuple[RefusedBundle, ...] = ()
    heartbeat: Heartbeat


@attrs.frozen(kw_only=True)
class SignedReport:
    """A report as it lies in the outbox. It is verified first and parsed after."""

    public_key: str
    """Raw Ed25519 public key, hex. Nobody believes it before its fingerprint was compared."""
    key_id: str
    signature: bytes
    payload: bytes


def key_fingerprint(public_key: str) -> str | None:
    """SHA-256 of a raw Ed25519 public key (hex); ``None`` for what is no such key."""
    try:
        raw = bytes.fromhex(public_key)
    except ValueError:
        return None
    return hashlib.sha256(raw).hexdigest() if len(raw) == 32 else None
