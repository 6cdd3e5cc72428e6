"""The ASGI lifespan protocol: start the application before the first connection, stop it after the last.

Our own, because hypercorn's turns an application that simply returns from the scope into an error at
shutdown, and hides the cause of a failed start-up.
Source: https://asgi.readthedocs.io/en/latest/specs/lifespan.html
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from lunanexa_adapters.http_server.answers import OnFault
from lunanexa_adapters.http_server.guard import guarded
from lunanexa_ports.asgi import AsgiApplication, Message
from lunanexa_ports.errors import PortFault


class _Lifespan:
    def __init__(self, app: AsgiApplication, on_fault: OnFault) -> None:
        self._app = app
        self._on_fault = on_fault
        self.state: dict[str, Any] = {}
        self.failure: str | None = None
        self.supported = True
        self.started = trio.Event()
        self.stopped = trio.Event()
        self.stop = trio.Event()
        self._asked_to_start = False

    async def run(self) -> None:
        await guarded(self._call, on_fault=self._on_error)
        self.supported = self.started.is_set()
        self.started.set()
        self.stopped.set()

    async def _call(self) -> None:
        scope = {"type": "lifespan", "asgi": {"spec_version": "2.0", "version": "3.0"}, "state": self.state}
        await self._app(scope, self._receive, self._send)

    def _on_error(self, error: BaseException) -> None:
        if self.started.is_set():  # before, an error is the protocol's way to say "not supported"
            self._on_fault(error)

    async def _receive(self) -> Message:
        if not self._asked_to_start:
            self._asked_to_start = True
            await trio.lowlevel.checkpoint()
            return {"type": "lifespan.startup"}
        await self.stop.wait()
        return {"type": "lifespan.shutdown"}

    async def _send(self, message: Message) -> None:
        match message["type"]:
            case "lifespan.startup.complete":
                self.started.set()
            case "lifespan.startup.failed":
                self.failure = message.get("message", "")
                self.started.set()
            case "lifespan.shutdown.complete" | "lifespan.shutdown.failed":
                self.stopped.set()
            case other:
                raise ValueError(f"unexpected message {other!r}")
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def running_lifespan(
    app: AsgiApplication, *, timeout_ms: int, on_fault: OnFault
) -> AsyncIterator[dict[str, Any]]:
    """The application is started inside; yields the state that it shares with each request's scope. Raises
    ``PortFault`` when it says that its start failed."""
    lifespan = _Lifespan(app, on_fault)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lifespan.run)
        with trio.fail_after(timeout_ms / 1000):
            await lifespan.started.wait()
        if lifespan.failure is not None:
            nursery.cancel_scope.cancel()
        else:
            yield lifespan.state
            lifespan.stop.set()
            with trio.move_on_after(timeout_ms / 1000):
                await lifespan.stopped.wait()
            nursery.cancel_scope.cancel()
    if lifespan.failure is not None:
        raise PortFault(f"the application did not start: {lifespan.failure}")
