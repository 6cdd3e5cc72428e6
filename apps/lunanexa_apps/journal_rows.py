"""Rows as documents, for the operator plane and for exported files, and back."""

from typing import Any

from lunanexa_apps.codec import CodecError, structure, unstructure
from lunanexa_core.canonical import JsonValue, NotCanonical, strict_json
from lunanexa_core.contract.journal import RowDocument
from lunanexa_core.journal import Row
from lunanexa_ports.errors import PortFault


def row_document(row: Row) -> JsonValue:
    """The document of ``row``; of a record that is no text there is none, and :class:`PortFault` says so."""
    try:
        record = row.record.decode()
    except UnicodeDecodeError:
        raise PortFault(f"row {row.sequence} of the journal is damaged: restore a backup") from None
    return unstructure(
        RowDocument(
            sequence=row.sequence,
            chain=row.chain,
            epoch=row.epoch,
            wall_ms=row.wall_ms,
            action=row.action,
            target=row.target,
            record=record,
            previous=row.previous,
            hash=row.hash,
        )
    )


def row_of_document(document: JsonValue) -> Row:
    """The row of a document, not verified. Raises :class:`CodecError` naming the member at fault."""
    told = structure(RowDocument, document)
    try:
        record = told.record.encode()
        bytes.fromhex(told.previous)
    except UnicodeEncodeError:
        raise CodecError("$.record", "not UTF-8 text") from None
    except ValueError:
        raise CodecError("$.previous", "not hexadecimal") from None
    return Row(
        sequence=told.sequence,
        chain=told.chain,
        epoch=told.epoch,
        wall_ms=told.wall_ms,
        action=told.action,
        target=told.target,
        record=record,
        previous=told.previous,
        hash=told.hash,
    )


def record_of(row: Row) -> dict[str, Any]:
    """What the record of a row holds; nothing where it is no object of ours."""
    try:
        record = strict_json(row.record)
    except NotCanonical:
        return {}
    return record if isinstance(record, dict) else {}
