"""The workloads of one connection, by the names that its client gave them."""

from collections.abc import Callable

from lunanexa_adapters.websocket.flow import Flow, Line


class Roster:
    """Those in progress, and the turns of those that wait for room in the outbox."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._flows: dict[str, Flow] = {}
        self._waiting: dict[Flow, None] = {}
        self.begun = 0
        """Begun or resumed here, ever."""

    @property
    def is_empty(self) -> bool:
        return not self._flows

    @property
    def is_full(self) -> bool:
        return len(self._flows) >= self._most

    def get(self, frame_id: str) -> Flow | None:
        return self._flows.get(frame_id)

    def attach(self, flow: Flow, line: Line, frame_id: str) -> None:
        """``flow`` goes on ``line``, under a name that is free."""
        assert frame_id not in self._flows
        self._flows[frame_id] = flow
        self.begun += 1
        flow.attach(line, frame_id)

    def drop(self, flow: Flow) -> None:
        """It has ended, or goes on elsewhere."""
        self._waiting.pop(flow, None)
        self._flows = {name: other for name, other in self._flows.items() if other is not flow}

    def wait(self, flow: Flow) -> None:
        """It is told when there is room."""
        self._waiting[flow] = None

    def give_turns(self, has_room: Callable[[], bool]) -> None:
        """One after another, while there is room. Who needs more waits behind the others."""
        while self._waiting and has_room():
            flow = next(iter(self._waiting))
            del self._waiting[flow]
            flow.advance()

    def detach_all(self, because: str | None, *, for_good: bool) -> None:
        """The connection is gone; ``for_good``: nobody can come back for any of them."""
        flows, self._flows = self._flows, {}
        self._waiting.clear()
        for flow in flows.values():
            flow.detach(because)
            if for_good:
                flow.scope.cancel(reason="nobody can come back for it")
