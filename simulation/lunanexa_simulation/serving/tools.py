"""The world as the composition root hands it in."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Protocol

import attrs
import trio

from lunanexa_ports.asgi import AsgiApplication
from lunanexa_ports.clock import Clock


class Listening(Protocol):
    """A real listener that takes connections, and serves none yet."""

    @property
    @abstractmethod
    def address(self) -> str:
        """``HOST:PORT``, as bound."""

    @abstractmethod
    async def serve(
        self,
        app: AsgiApplication,
        *,
        shutdown: trio.Event,
        fault: Callable[[str], None],
        task_status: trio.TaskStatus[None],
    ) -> None:
        """HTTP and WebSocket, until ``shutdown`` and a short drain after it. ``fault``: told of the kind of each error
        that ended a connection."""


@attrs.frozen(kw_only=True)
class ServeTools:
    """Adapters on this machine."""

    clock: Clock
    listen: Callable[[str, int], Awaitable[Listening]]
    """Raises ``OSError``."""
