"""A node agent's memory on a simulated disk."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import attrs
import trio

from lunanexa_core.ids import AssignmentId
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.node_store import NodeStore
from lunanexa_simulation.disk import Mount, SimulatedDisk


@attrs.define
class NodeStoreState:
    """What is on the disk."""

    start_number: int = 0
    facts: dict[str, bytes] = attrs.Factory(dict)
    replicas: dict[AssignmentId, bytes] = attrs.Factory(dict)


class SimulatedNodeStore(NodeStore):
    """One agent's opening of the node store on a disk."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount
        self._closed = False

    @property
    def _state(self) -> NodeStoreState:
        return self._mount.disk.state(NodeStoreState)

    async def next_start_number(self) -> int:
        def count() -> int:
            self._state.start_number += 1
            return self._state.start_number

        self._check()
        return await self._mount.write(count)

    async def put(self, name: str, value: bytes) -> None:
        def put() -> None:
            self._state.facts[name] = value

        self._check()
        await self._mount.write(put)

    async def get(self, name: str) -> bytes | None:
        await trio.lowlevel.checkpoint()
        self._check()
        return self._state.facts.get(name)

    async def put_replica(self, assignment: AssignmentId, value: bytes | None) -> None:
        def put() -> None:
            if value is None:
                self._state.replicas.pop(assignment, None)
            else:
                self._state.replicas[assignment] = value

        self._check()
        await self._mount.write(put)

    async def replicas(self) -> Mapping[AssignmentId, bytes]:
        await trio.lowlevel.checkpoint()
        self._check()
        return dict(sorted(self._state.replicas.items()))

    async def aclose(self) -> None:
        self._closed = True
        await trio.lowlevel.checkpoint()

    def _check(self) -> None:
        if self._closed:
            raise PortUnavailable("the simulated node store is closed")
        self._mount.check()


@asynccontextmanager
async def open_simulated_node_store(disk: SimulatedDisk) -> AsyncIterator[SimulatedNodeStore]:
    """The node store on ``disk``, on a mount of its own. Raises as the port does."""
    mount = disk.mount()
    mount.check()
    store = SimulatedNodeStore(mount)
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()
