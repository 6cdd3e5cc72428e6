"""What all connections share."""

from collections.abc import Awaitable, Callable

import attrs

from lunanexa_adapters.websocket.flow import Flow
from lunanexa_adapters.websocket.log import Log, Room
from lunanexa_adapters.websocket.report import Reporter
from lunanexa_adapters.websocket.resumables import Resumables
from lunanexa_adapters.websocket.settings import WebSocketSettings
from lunanexa_core.ids import RequestId, WorkloadId
from lunanexa_ports.clock import Clock
from lunanexa_ports.gateway import InferenceGateway
from lunanexa_ports.ids import IdSource
from lunanexa_ports.workloads import WorkloadPlane


@attrs.frozen(kw_only=True)
class Services:
    """Ports, bounds, and what outlives a connection."""

    gateway: InferenceGateway
    workloads: WorkloadPlane
    ids: IdSource
    clock: Clock
    settings: WebSocketSettings
    reporter: Reporter
    resumables: Resumables
    room: Room

    def new_flow(self, key_digest: str, *, kept: bool) -> Flow:
        """A workload that nothing has been said of yet; a kept one only this key can come back for."""
        settings = self.settings

        def issue(flow: Flow, workload: WorkloadId) -> str | None:
            token = self.resumables.issue(flow, workload, key_digest)
            self.reporter.kept(len(self.resumables), self.room.used_bytes)
            return token

        return Flow(
            request=self.new_request(),
            log=Log(self.room, kept=kept, pieces_max=settings.kept_events_max, bytes_max=settings.kept_bytes_max),
            issue=issue,
            slow_ms=settings.slow_ms,
            keep_ms=settings.resume_ms,
        )

    def new_request(self) -> RequestId:
        """For a workload, or for the refusal of what would have been one."""
        return RequestId(self.ids.new("req"))

    def forget(self, flow: Flow) -> None:
        """Nobody can come back for it any more."""
        self.resumables.forget(flow)
        self.reporter.kept(len(self.resumables), self.room.used_bytes)


async def fault_of(work: Callable[[], Awaitable[None]]) -> BaseException | None:
    """Runs ``work``; the error that it broke with. The one guard of this package: a bug that one workload or one
    connection meets must not end another's. Cancellation goes on its way."""
    fault: BaseException | None = None
    try:
        await work()
    except* Exception as group:  # noqa: BLE001 - the guard itself, see above
        fault = group.exceptions[0] if len(group.exceptions) == 1 else group
    return fault
