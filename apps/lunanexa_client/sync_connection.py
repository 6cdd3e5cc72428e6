"""The sync face of a WebSocket connection and of its workloads."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from lunanexa_client.errors import LunaNexaError
from lunanexa_client.portal import Held, Portal
from lunanexa_core.workload import Usage

if TYPE_CHECKING:
    from lunanexa_client.connection import Connection
    from lunanexa_client.handle import WorkloadHandle

_END: Final = object()


class SyncConnection:
    """As :class:`~lunanexa_client.connection.Connection`."""

    def __init__(self, portal: Portal, context: "AbstractAsyncContextManager[Connection]") -> None:
        self._portal = portal
        self._held = Held(portal, context)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def closed_because(self) -> LunaNexaError | None:
        return self._held.value.closed_because

    def submit(
        self, request: Mapping[str, Any], *, endpoint: str | None = None, resumable: bool = False
    ) -> "SyncWorkload":
        """Starts a workload: an envelope, or with ``endpoint`` the body of that dialect."""
        start = partial(self._held.value.submit, request, endpoint=endpoint, resumable=resumable)
        return SyncWorkload(self._portal, self._portal.call(start))

    def close(self) -> None:
        """Closes the connection; what still runs on it ends. Idempotent."""
        self._held.close()


class SyncWorkload:
    """As :class:`~lunanexa_client.handle.WorkloadHandle`."""

    def __init__(self, portal: Portal, handle: "WorkloadHandle") -> None:
        self._portal = portal
        self._handle = handle

    @property
    def workload_id(self) -> str | None:
        return self._handle.workload_id

    @property
    def queue_position(self) -> int | None:
        return self._handle.queue_position

    @property
    def replayed(self) -> bool:
        return self._handle.replayed

    @property
    def usage(self) -> Usage | None:
        return self._handle.usage

    def accepted(self) -> str:
        """Waits until it is admitted, and returns its identifier. Raises the refusal."""
        return self._portal.call(self._handle.accepted)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        data = self._portal.call(_next_or_end, self._handle)
        if data is _END:
            raise StopIteration
        return data

    def result(self) -> dict[str, Any]:
        """Waits for the end, passing over events that were not read, and returns the response."""
        return self._portal.call(self._handle.result)

    def cancel(self) -> dict[str, Any] | None:
        """Ends it and waits for the end. The receipt, where it was cancelled and that is durable already."""
        return self._portal.call(self._handle.cancel)


async def _next_or_end(handle: "WorkloadHandle") -> Any:
    return await anext(handle, _END)
