"""The published documents and their JSON Schemas, each under its name."""

from typing import Any, Final

from lunanexa_core.canonical import JsonValue
from lunanexa_core.contract import fleet, frames, insight, journal, keys, operator, recovery, trust
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
from lunanexa_core.deployment import DeploymentSpec, EngineSpec
from lunanexa_core.identity.trust import TrustSet
from lunanexa_core.southbound.documents import DesiredState, DocumentSeen
from lunanexa_core.southbound.enrolment import Authorities, Challenge, Enrolled, Enrolment, Renewal
from lunanexa_core.southbound.heartbeat import Heartbeat, HeartbeatAnswer

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
STRICT: Final = frozenset[type](
    (
        *(WorkloadEnvelope, CeilingDocument, DataPolicyDocument, RetentionDocument),
        *(DeploymentSpec, EngineSpec, keys.KeyRequest, fleet.DirectiveRequest, fleet.ScaleRequest),
        *(trust.TokenRequest, trust.RevokeRequest, trust.AddressRequest),
    )
)
"""Of these an unknown member is refused: a term that was misspelt would silently not hold."""
DATA_PLANE: Final[dict[str, type[Any]]] = {
    "error": ErrorDocument,
    "model-list": ModelList,
    "capabilities": CapabilitiesDocument,
    "workload": WorkloadDocument,
    "workload-envelope": WorkloadEnvelope,
    "workload-page": WorkloadPage,
    "workload-response": ResponseDocument,
}
OPERATOR_PLANE: Final[dict[str, type[Any]]] = {
    "status": operator.StatusDocument,
    "node-list": fleet.NodeList,
    "node": fleet.NodeDocument,
    "directive-request": fleet.DirectiveRequest,
    "deployment-spec": DeploymentSpec,
    "deployment-list": operator.DeploymentList,
    "deployment": fleet.DeploymentDocument,
    "deployment-plan": fleet.DeploymentPlan,
    "scale-request": fleet.ScaleRequest,
    "key-request": keys.KeyRequest,
    "key-made": keys.KeyMade,
    "key-list": keys.KeyList,
    "receipt-list": operator.ReceiptList,
    "request-list": insight.RequestList,
    "explanation": insight.Explanation,
    "journal-page": journal.RowPage,
    "journal-head": journal.HeadDocument,
    "recovery": recovery.RecoveryDocument,
    "token-request": trust.TokenRequest,
    "token-minted": trust.TokenMinted,
    "revoke-request": trust.RevokeRequest,
    "address-request": trust.AddressRequest,
    "trust": trust.TrustDocument,
}
SOUTHBOUND: Final[dict[str, type[Any]]] = {
    "authorities": Authorities,
    "enrolment": Enrolment,
    "enrolled": Enrolled,
    "challenge": Challenge,
    "renewal": Renewal,
    "heartbeat": Heartbeat,
    "heartbeat-answer": HeartbeatAnswer,
    "desired-state": DesiredState,
    "document-seen": DocumentSeen,
    "trust-set": TrustSet,
}
"""What controller and node say to each other. Unknown members are ignored by both, so that one may be a version ahead
of the other."""
DOCUMENTS: Final = DATA_PLANE | OPERATOR_PLANE | SOUTHBOUND
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
    book = SchemaBook(closed=frozenset() if name in SOUTHBOUND else STRICT, prefix="#/$defs/")
    one_of = [_frame(kind, book) for kind in FRAMES.get(name, ())]
    top: Schema = {"oneOf": one_of} if one_of else book.of(DOCUMENTS[name])
    return {"$schema": DIALECT, "$id": f"{CONTRACT}/{name}", "title": name, **top, "$defs": book.schemas}


def _frame(kind: type[Any], book: SchemaBook) -> JsonValue:
    return {
        "allOf": [book.of(kind)],
        "properties": {"type": {"const": kind.__name__.lower()}},
        "required": ["type"],
    }
