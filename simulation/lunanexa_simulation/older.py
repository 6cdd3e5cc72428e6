"""What an earlier version of the product wrote, where a simulated world keeps it or hears it.

Forms grow by members that have a default, and a reader takes what lacks them. The earlier version here is the earliest
that may have been: whatever can be left out, without that anything else is meant, it did not know. True stores of
released versions are kept with the tests of the store adapters.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, Final

from lunanexa_apps.codec import CodecError, decode, structure
from lunanexa_core.canonical import canonical_json, strict_json
from lunanexa_core.events import kind_for
from lunanexa_core.journal import Chain, Head, Row, make_row
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_core.southbound.enrolment import Enrolment, Renewal
from lunanexa_core.southbound.heartbeat import Heartbeat
from lunanexa_ports.signing import Signer

SPOKEN: Final = (Heartbeat, Enrolment, Renewal)
"""What a node signs."""
UNSAID: Final = ("trust_version", "leased", "document_refusal", "refused", "skew_ms", "skew_error_ms")
"""Of a heartbeat: what an agent may be too old to say."""


def older(kind: type[Any], document: Any) -> Any:
    """The JSON value ``document`` of a ``kind``, without all that can be left out."""
    meant, thinned = structure(kind, document), deepcopy(document)
    for holder, name in list(_members(thinned)):
        value = holder.pop(name)
        if not _means(kind, thinned, meant):
            holder[name] = value
    return thinned


def older_rows(rows: Sequence[Row]) -> tuple[list[Row], dict[int, Head]]:
    """The same history in its older form, chained anew, and the head after each row, by its sequence."""
    head, written, heads = Head(), [], {}
    for row in rows:
        record = strict_json(row.record)
        action, version = record["action"], record["version"]
        thinned = make_row(
            head,
            chain=Chain(record["chain"]),
            epoch=record["epoch"],
            wall_ms=record["wall_ms"],
            actor=record["actor"],
            action=action,
            version=version,
            target=record["target"],
            body=older(kind_for(action, version).type, record["body"]),
        )
        written.append(thinned)
        heads[row.sequence] = head = head.after(thinned)
    return written, heads


def older_snapshot(data: bytes, head: Head) -> bytes:
    """A snapshot file as the version before kept it: whole and sealed, of what its ``apply`` made at ``head``."""
    first, rest = data.rsplit(b"\n", 2)[0].split(b"\n", 1)
    beginning = json.loads(first)
    older_than_ours = {"apply_version": beginning["apply_version"] - 1, "journal": head.journal, "ledger": head.ledger}
    body = canonical_json({**beginning, **older_than_ours}) + b"\n" + rest + b"\n"
    return body + canonical_json({"sha256": hashlib.sha256(body).hexdigest()}) + b"\n"


class OlderSigner(Signer):
    """The key of a node whose agent is of the earlier version, and what it signs."""

    def __init__(self, key: Signer) -> None:
        self._key = key

    @property
    def key_id(self) -> str:
        return self._key.key_id

    @property
    def public_key(self) -> str:
        return self._key.public_key

    def sign(self, payload: bytes) -> SignedDocument:
        return self._key.sign(_older_word(payload))


def _older_word(payload: bytes) -> bytes:
    for kind in SPOKEN:
        try:
            decode(kind, payload, closed=True)
        except CodecError:
            continue
        said = {name: value for name, value in strict_json(payload).items() if name not in UNSAID}
        return canonical_json(older(kind, said))
    raise AssertionError("a node signs nothing else")


def _members(document: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Every member of every object, the outer ones first."""
    if isinstance(document, dict):
        for name in list(document):
            yield document, name
        for value in list(document.values()):
            yield from _members(value)
    elif isinstance(document, list):
        for value in document:
            yield from _members(value)


def _means(kind: type[Any], document: Any, meant: object) -> bool:
    try:
        return bool(structure(kind, document) == meant)
    except CodecError:
        return False
