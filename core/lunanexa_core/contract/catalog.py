"""The published documents of the data plane and their JSON Schemas, each under its name."""

from typing import Any, Final

from lunanexa_core.canonical import JsonValue
from lunanexa_core.contract import frames
from lunanexa_core.contract.data_plane import ErrorDocument, ModelList
from lunanexa_core.contract.envelope import (
    CONTRACT,
    CeilingDocument,
    DataPolicyDocument,
    RetentionDocument,
    WorkloadEnvelope,
)
from lunanexa_core.contract.response import ResponseDocument
from lunanexa_core.contract.schema import Schema, SchemaBook
from lunanexa_core.contract.workloads import CapabilitiesDocument, WorkloadDocument, WorkloadPage

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
STRICT: Final = frozenset((WorkloadEnvelope, CeilingDocument, DataPolicyDocument, RetentionDocument))
"""Of these an unknown member is refused: a term that was misspelt would silently not hold."""
DOCUMENTS: Final[dict[str, type[Any]]] = {
    "error": ErrorDocument,
    "model-list": ModelList,
    "capabilities": CapabilitiesDocument,
    "workload": WorkloadDocument,
    "workload-envelope": WorkloadEnvelope,
    "workload-page": WorkloadPage,
    "workload-response": ResponseDocument,
}
FRAMES: Final[dict[str, tuple[type[Any], ...]]] = {
    "client-frame": (frames.Submit, frames.Cancel, frames.Credit, frames.Resume),
    "server-frame": (
        *(frames.Accepted, frames.Event, frames.Completed, frames.Failed, frames.Cancelled),
        frames.Goaway,
    ),
}


def contract_schemas() -> dict[str, Schema]:
    """JSON Schema (2020-12) of each document, by name."""
    return {name: _schema(name) for name in (*DOCUMENTS, *FRAMES)}


def _schema(name: str) -> Schema:
    book = SchemaBook(closed=STRICT, prefix="#/$defs/")
    one_of = [_frame(kind, book) for kind in FRAMES.get(name, ())]
    top: Schema = {"oneOf": one_of} if one_of else book.of(DOCUMENTS[name])
    return {"$schema": DIALECT, "$id": f"{CONTRACT}/{name}", "title": name, **top, "$defs": book.schemas}


def _frame(kind: type[Any], book: SchemaBook) -> JsonValue:
    return {
        "allOf": [book.of(kind)],
        "properties": {"type": {"const": kind.__name__.lower()}},
        "required": ["type"],
    }
