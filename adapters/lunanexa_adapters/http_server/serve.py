"""``serve_http``: an ASGI application (HTTP and WebSocket) on hypercorn 0.18, HTTP/1.1 only, behind our guard.

hypercorn is used for what it is good at, the translation between h11 or wsproto and ASGI; accepting,
reading, writing, deadlines and faults are ours. Only names of 0.18 are used that are not private by
underscore but undocumented, so the version is pinned.
"""

from collections.abc import Sequence
from typing import Any

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.logging import Logger
from hypercorn.trio.worker_context import WorkerContext

from lunanexa_adapters.http_server.accept import (
    Drain,
    Extensions,
    Listener,
    Shutdown,
    Stream,
    run_connections,
    wait_for,
)
from lunanexa_adapters.http_server.answers import OnFault, RenderError
from lunanexa_adapters.http_server.connection import GuardedConnection
from lunanexa_adapters.http_server.h11_protocol import GuardConfig
from lunanexa_adapters.http_server.lifespan import running_lifespan
from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_ports.asgi import AsgiApplication


class _NoLog(Logger):
    """hypercorn's access log copies the whole environment for each line (a fifth of the throughput); requests
    are logged where their outcome is known, faults go to ``on_fault``."""

    def __init__(self, config: Any) -> None:
        self.access_logger = None
        self.error_logger = None

    async def access(self, *args: Any, **kwargs: Any) -> None:
        return None

    async def log(self, *args: Any, **kwargs: Any) -> None:
        return None


async def serve_http(
    app: AsgiApplication,
    listeners: Sequence[Listener],
    *,
    render_error: RenderError,
    on_fault: OnFault,
    limits: ServerLimits | None = None,
    shutdown: Shutdown = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until ``shutdown``, drains for ``limits.grace_ms`` and returns; without it, until cancelled (which
    drains nothing). Takes plain and TLS listeners, and closes them. Raises ``PortFault`` when the
    application's own start-up fails."""
    limits = limits or ServerLimits()
    config = guard_config(limits, render_error, on_fault)
    context = WorkerContext(None)
    wrapped = ASGIWrapper(app)  # type: ignore[arg-type]  # plain mappings here, typed dicts there

    async with running_lifespan(app, timeout_ms=limits.lifespan_timeout_ms, on_fault=on_fault) as state:

        def open_connection(stream: Stream, drain: Drain, extensions: Extensions) -> GuardedConnection:
            return GuardedConnection(wrapped, config, context, state, stream, drain, extensions)

        async def announced_shutdown() -> None:
            await wait_for(shutdown)
            await context.terminated.set()

        await run_connections(
            listeners,
            open_connection,
            limits=limits,
            render_error=render_error,
            on_fault=on_fault,
            shutdown=announced_shutdown,
            task_status=task_status,
        )


def guard_config(limits: ServerLimits, render_error: RenderError, on_fault: OnFault) -> GuardConfig:
    """hypercorn's configuration with everything that is ours switched off in it."""
    config = GuardConfig()
    config.limits = limits
    config.render_error = render_error
    config.on_fault = on_fault
    config.logger_class = _NoLog
    config.accesslog = None
    config.errorlog = None
    config.include_server_header = False
    config.h11_max_incomplete_size = limits.head_max_bytes
    config.keep_alive_max_requests = 2**63
    config.websocket_max_message_size = limits.websocket_message_max_bytes
    config.websocket_ping_interval = limits.websocket_ping_ms / 1000 or None
    return config
