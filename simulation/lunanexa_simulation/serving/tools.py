"""The world as the composition root hands it in."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import attrs
import trio

from lunanexa_apps.setting_kinds import HostPort
from lunanexa_ports.asgi import AsgiApplication
from lunanexa_ports.clock import Clock


class Serve(Protocol):
    """Serves HTTP and WebSocket on one listener, until ``shutdown`` and a short drain after it. ``fault``: told of the
    kind of each error that ended a connection."""

    async def __call__(
        self,
        app: AsgiApplication,
        *,
        shutdown: trio.Event,
        fault: Callable[[str], None],
        task_status: trio.TaskStatus[None],
    ) -> None: ...


@attrs.frozen(kw_only=True)
class Listening:
    """A real listener that takes connections, and serves none before ``serve`` is called. ``address``: as bound."""

    address: HostPort
    serve: Serve


@attrs.frozen(kw_only=True)
class ServeTools:
    """Adapters on this machine."""

    clock: Clock
    listen: Callable[[HostPort], Awaitable[Listening]]
    """Raises ``OSError``."""
