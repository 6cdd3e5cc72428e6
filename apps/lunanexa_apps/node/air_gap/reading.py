"""Reading an outbox on the operator's side: only what the registered key has signed counts."""

from collections.abc import Sequence

import attrs

from lunanexa_apps.codec import CodecError, decode
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_core.southbound.outbox import OutboxReport, SignedReport, key_fingerprint
from lunanexa_ports.signing import Verifier


@attrs.frozen
class ReadReport:
    """One file of an outbox: ``report``, or the ``problem`` for which it does not count."""

    name: str
    report: OutboxReport | None = None
    problem: str | None = None


def read_outbox(files: Sequence[tuple[str, bytes]], fingerprint: str, verifier: Verifier) -> Sequence[ReadReport]:
    """Each file, in the order in which the node wrote them; ``fingerprint`` is the SHA-256 of its key, hex."""
    read = [_read(name, data, fingerprint, verifier) for name, data in files]
    return sorted(read, key=lambda one: (0 if one.report is None else one.report.number, one.name))


def _read(name: str, data: bytes, fingerprint: str, verifier: Verifier) -> ReadReport:
    try:
        envelope = decode(SignedReport, data)
    except CodecError as error:
        return ReadReport(name, problem=f"is no report ({error})")
    if key_fingerprint(envelope.public_key) != fingerprint:
        return ReadReport(name, problem="is signed by another key than the one that is registered")
    document = SignedDocument(payload=envelope.payload, key_id=envelope.key_id, signature=envelope.signature)
    if not verifier.verify(document, {envelope.key_id: envelope.public_key}):
        return ReadReport(name, problem="has another content than what was signed")
    try:
        return ReadReport(name, report=decode(OutboxReport, envelope.payload))
    except CodecError as error:
        return ReadReport(name, problem=f"can't be read by this version ({error})")
