"""What people who watch see of WebSockets: counts, and a line a connection. No payload, no key."""

from typing import Final

import structlog

from lunanexa_core.ids import RequestId
from lunanexa_ports.metrics import Metrics

HELP: Final = {
    "lunanexa_websocket_connections": "WebSocket connections that are open.",
    "lunanexa_websocket_closes_total": "WebSocket connections that ended, by close code (1006: without one).",
    "lunanexa_websocket_frames_total": "WebSocket frames, by direction.",
    "lunanexa_websocket_kept_workloads": "Resumable workloads that are kept.",
    "lunanexa_websocket_kept_bytes": "Output that is kept for clients that may come back.",
}

_CODES: Final = frozenset((1000, 1001, 1003, 1005, 1006, 1007, 1008, 1009, 1011, 1012, 4008))
"""A client may close with any code; a label has few values."""


class Reporter:
    """Counts, and tells."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._log = structlog.get_logger("lunanexa.websocket")
        self._open = 0

    @property
    def open_connections(self) -> int:
        return self._open

    def began(self) -> None:
        self._open += 1
        self._metrics.set("lunanexa_websocket_connections", self._open)

    def ended(self, request: RequestId, code: int, *, workloads: int, ms: int) -> None:
        self._open -= 1
        self._metrics.set("lunanexa_websocket_connections", self._open)
        self._metrics.count("lunanexa_websocket_closes_total", {"code": str(code) if code in _CODES else "other"})
        self._log.info("websocket_closed", request_id=request, code=code, workloads=workloads, ms=ms)

    def frame_in(self) -> None:
        self._metrics.count("lunanexa_websocket_frames_total", {"direction": "in"})

    def frame_out(self) -> None:
        self._metrics.count("lunanexa_websocket_frames_total", {"direction": "out"})

    def kept(self, workloads: int, kept_bytes: int) -> None:
        self._metrics.set("lunanexa_websocket_kept_workloads", workloads)
        self._metrics.set("lunanexa_websocket_kept_bytes", kept_bytes)

    def fault(self, what: str, request: RequestId, error: BaseException) -> None:
        """A bug of ours."""
        self._log.error(what, request_id=request, exc_info=error)
