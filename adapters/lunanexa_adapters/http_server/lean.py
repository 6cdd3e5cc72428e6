"""``serve_lean``: a small HTTP/1.1 server for ASGI applications, h11 over Trio.

Costs a fraction of hypercorn a request and does less: no WebSocket, no lifespan options. The reference
engine and the listener for nodes run on it; under the same application it can stand in hypercorn's place.
"""

from collections.abc import Sequence

import trio

from lunanexa_adapters.http_server.accept import Drain, Extensions, Listener, Shutdown, Stream, run_connections
from lunanexa_adapters.http_server.answers import OnFault, RenderError
from lunanexa_adapters.http_server.lean_connection import LeanConnection
from lunanexa_adapters.http_server.lifespan import running_lifespan
from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_ports.asgi import AsgiApplication


async def serve_lean(
    app: AsgiApplication,
    listeners: Sequence[Listener],
    *,
    render_error: RenderError,
    on_fault: OnFault,
    limits: ServerLimits | None = None,
    shutdown: Shutdown = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """As ``serve_http``: serves until ``shutdown``, drains for ``limits.grace_ms`` and returns; without it, until
    cancelled. Closes the listeners. Raises ``PortFault`` when the application's own start-up fails.

    A watcher reads the socket while the application works: the client's departure is delivered to ``receive()``
    at once, and each later ``send()`` raises ``ClientGone`` (an ``OSError``). The application is not cancelled:
    it may have something to settle."""
    limits = limits or ServerLimits()
    async with running_lifespan(app, timeout_ms=limits.lifespan_timeout_ms, on_fault=on_fault) as state:

        def open_connection(stream: Stream, drain: Drain, extensions: Extensions) -> LeanConnection:
            return LeanConnection(
                app,
                stream,
                drain,
                extensions,
                state=state,
                limits=limits,
                render_error=render_error,
                on_fault=on_fault,
            )

        await run_connections(
            listeners,
            open_connection,
            limits=limits,
            render_error=render_error,
            on_fault=on_fault,
            shutdown=shutdown,
            task_status=task_status,
        )
