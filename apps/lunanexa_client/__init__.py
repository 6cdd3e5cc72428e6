"""LunaNexa's client library: a Trio face and a sync face, over HTTP and WebSocket.

Importing it is cheap: what serves is not imported, and the WebSocket library only when it is used.
"""

from lunanexa_client.answers import Answer, AnswerHead, Document, Model, Page, StreamEvent
from lunanexa_client.client import AsyncClient
from lunanexa_client.errors import (
    AuthenticationError,
    Conflict,
    ConnectionFailed,
    DeadlineExceeded,
    EngineFailed,
    InternalError,
    InvalidRequest,
    LunaNexaError,
    NotFound,
    PermissionDenied,
    ProtocolError,
    RateLimited,
    ResumeGone,
    StreamCut,
    Unavailable,
    WorkloadCancelled,
)
from lunanexa_client.events import EventStream
from lunanexa_client.handle import WorkloadHandle
from lunanexa_client.operator import AsyncOperator, JournalPage, OperatorPage
from lunanexa_client.receipts import Receipt
from lunanexa_client.settings import CallOptions, ClientSettings, Limits, Retries
from lunanexa_client.sync_client import Client, SyncEventStream
from lunanexa_client.sync_connection import SyncConnection, SyncWorkload
from lunanexa_client.sync_operator import Operator
from lunanexa_core.journal import Chain
from lunanexa_core.journal_query import PageQuery, ReceiptQuery

__all__ = [
    "Answer",
    "AnswerHead",
    "AsyncClient",
    "AsyncOperator",
    "AuthenticationError",
    "CallOptions",
    "Chain",
    "Client",
    "ClientSettings",
    "Conflict",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Document",
    "EngineFailed",
    "EventStream",
    "InternalError",
    "InvalidRequest",
    "JournalPage",
    "Limits",
    "LunaNexaError",
    "Model",
    "NotFound",
    "Operator",
    "OperatorPage",
    "Page",
    "PageQuery",
    "PermissionDenied",
    "ProtocolError",
    "RateLimited",
    "Receipt",
    "ReceiptQuery",
    "ResumeGone",
    "Retries",
    "StreamCut",
    "StreamEvent",
    "SyncConnection",
    "SyncEventStream",
    "SyncWorkload",
    "Unavailable",
    "WorkloadCancelled",
    "WorkloadHandle",
]
