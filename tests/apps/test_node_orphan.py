"""An engine that is a wrapper: its child leaves the group, outlives wrapper and agent, and serves on at the port at
which the next start looks for itself."""

import pytest
import trio
from trio.testing import MockClock

from lunanexa_core.southbound.heartbeat import ReplicaReport, ReplicaState
from lunanexa_simulation.process import SimulatedProcess
from lunanexa_simulation.processes import SimulatedProcesses
from tests.apps.node_world import BINARY, NodeWorld, assignment, node_world

PORT = 40_001


@pytest.fixture
def clock() -> MockClock:
    """Time passes only when every task waits."""
    return MockClock(autojump_threshold=0)


class OnePort(SimulatedProcesses):
    """A host that gives out one port, again and again."""

    def free_port(self) -> int:
        return PORT


class Wrapper:
    """Starts its server as a child that no group holds. While an earlier one has the port, the new one ends at once,
    which the wrapper does not notice."""

    def __init__(self, world: NodeWorld) -> None:
        self._world = world
        self.servers: list[SimulatedProcess] = []

    async def __call__(self, wrapper: SimulatedProcess) -> int:
        host = self._world.host
        if PORT not in host.listeners:
            server = SimulatedProcess(
                host, wrapper.start, ("server", *wrapper.argv[1:]), wrapper.environment, wrapper.log_name, None
            )
            self.servers.append(server)
            host.run(server, self._serve)
        await trio.sleep_forever()

    async def _serve(self, server: SimulatedProcess) -> int:
        network = self._world.network
        with server.listening(PORT):
            network.listen("127.0.0.1", PORT, self._world.engine.serve(server))
            try:
                await trio.sleep_forever()
            finally:
                network.kill("127.0.0.1", PORT)


async def test_an_orphan_on_the_port_neither_serves_nor_passes_readiness(clock: MockClock) -> None:
    async with node_world(clock) as world:
        wrapper = world.host.programs[BINARY] = Wrapper(world)
        before, after = OnePort(world.host), OnePort(world.host)
        running = await world.start(wrap_processes=lambda _: before)
        world.controller.desire(assignment())
        first = await world.controller.until_state(ReplicaState.READY)
        assert first.start is not None
        running.kill()
        before.die()
        await running.ended.wait()
        main = world.host.main_process(first.start)
        assert main is not None
        main.crash(signal=9)
        await main.ended.wait()
        told = len(world.controller.heartbeats)

        def since() -> list[ReplicaReport]:
            return [one for beat in world.controller.heartbeats[told:] for one in beat.replicas]

        await world.start(wrap_processes=lambda _: after)
        await world.controller.until(
            lambda: "wrong_identity" in {one.exit.kind for one in since() if one.exit is not None}
        )
        assert ReplicaState.READY not in {one.state for one in since()}
        (orphan,) = wrapper.servers
        assert not orphan.ended.is_set(), "who is none of ours gets no signal"
        orphan.crash(signal=9)
        again = await world.controller.until_state(ReplicaState.READY)
        assert again.start not in (None, first.start)
        assert world.host.start_at(PORT) == again.start
