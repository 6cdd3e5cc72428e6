"""What an earlier version of the product wrote, where a simulated world keeps it or hears it.

Forms grow by members that have a default, and a reader takes what lacks them. The earlier version here is the earliest
that may have been: whatever can be left out, without that anything else is meant, it did not know. What released
versions truly wrote into a journal is kept in ``released``, one record a line: the rows of the stores that the tests of
the store adapters keep.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from importlib.resources import files
from typing import Any, Final

from lunanexa_apps.codec import CodecError, decode, structure
from lunanexa_core.canonical import canonical_json, strict_json
from lunanexa_core.events import kind_for
from lunanexa_core.ids import is_identifier
from lunanexa_core.journal import Chain, Head, Row, make_row
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_core.southbound.enrolment import Enrolment, Renewal
from lunanexa_core.southbound.heartbeat import Heartbeat
from lunanexa_ports.signing import Signer

RELEASED: Final = (1, 2)
"""Schemas of journals."""
SPOKEN: Final = (Heartbeat, Enrolment, Renewal)
"""What a node signs."""
UNSAID: Final = ("trust_version", "certificate", "leased", "document_refusal", "refused", "skew_ms", "skew_error_ms")
"""Of a heartbeat: what an agent may be too old to say."""


_UNKNOWN_TABLE: Final = b'["places",'
"""Of a state."""


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
    records = [strict_json(row.record) for row in rows]
    for record in records:
        record["body"] = older(kind_for(record["action"], record["version"]).type, record["body"])
    written = _chained(records)
    return [row for row, _ in written], {row.sequence: head for row, head in written}


def released_rows(schema: int) -> tuple[list[Row], Head]:
    """What a store of a released schema held, and its head; but for what has names that nobody could ever give: only
    tests write such."""
    records = map(strict_json, released_records(schema))
    written = _chained([record for record in records if is_identifier(record["target"])])
    return [row for row, _ in written], written[-1][1]


def released_records(schema: int) -> list[bytes]:
    """Its rows to the byte."""
    return files("lunanexa_simulation").joinpath(f"released/journal-{schema}.jsonl").read_bytes().splitlines()


def _chained(records: Sequence[Any]) -> list[tuple[Row, Head]]:
    head, written = Head(), []
    for record in records:
        members = {name: value for name, value in record.items() if name not in ("chain", "sequence")}
        row = make_row(head, chain=Chain(record["chain"]), **members)
        head = head.after(row)
        written.append((row, head))
    return written


def older_snapshot(data: bytes, head: Head) -> bytes:
    """A snapshot file as the version before kept it: whole and sealed, of what its ``apply`` made at ``head``, and that
    is not all that ours makes of the same rows."""
    first, *entries = data.rsplit(b"\n", 2)[0].split(b"\n")
    beginning = json.loads(first)
    older_than_ours = {"apply_version": beginning["apply_version"] - 1, "journal": head.journal, "ledger": head.ledger}
    known = [entry for entry in entries if not entry.startswith(_UNKNOWN_TABLE)]
    body = b"".join(line + b"\n" for line in (canonical_json({**beginning, **older_than_ours}), *known))
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
