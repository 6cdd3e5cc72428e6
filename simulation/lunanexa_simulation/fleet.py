"""The machines of a simulated world and the network between them: controllers that share a journal, and nodes.

Times of two machines are never compared, so each machine has a clock of its own, which starts elsewhere.
Every name, port and secret is drawn from the seed or written here.
"""

from typing import Final

import attrs
import trio

from lunanexa_core.ids import ClusterId, NodeId
from lunanexa_simulation.clock import EPOCH_WALL_MS, SimulatedClock
from lunanexa_simulation.controller_host import HOST, ControllerHost
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.fleet_keys import SimulatedFleetKeys
from lunanexa_simulation.http_client import SimulatedNetwork
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.installation import Installation, Secrets
from lunanexa_simulation.journal import JournalState
from lunanexa_simulation.node_host import PORTS_EACH, NodeHost
from lunanexa_simulation.promises import Promises
from lunanexa_simulation.run import Run
from lunanexa_simulation.sight import Sight
from lunanexa_simulation.signing import SimulatedKeyring, SimulatedVerifier
from lunanexa_simulation.world_plan import WorldPlan

DATA_PORT: Final = 8500
_PORTS: Final = 25_000
"""Of all engines together."""


class Fleet(Promises):
    """As a plan has it, with everything switched off."""

    def __init__(self, run: Run, nursery: trio.Nursery, plan: WorldPlan) -> None:
        super().__init__(run)
        self.plan = plan
        self._nursery = nursery
        self.network = SimulatedNetwork(nursery, run.streams, latency_ms=plan.latency_ms)
        self.clock = SimulatedClock(mono_ms=1_000_000, wall_ms=EPOCH_WALL_MS)
        self.clocks = [self.clock]
        """Of each controller's machine."""
        for number in range(2, plan.controllers + 1):
            self.clocks.append(SimulatedClock(mono_ms=number * 3_333_333, wall_ms=EPOCH_WALL_MS - number))
        ids = SimulatedIds(run.streams.stream("installation"), self.clock)
        self.secrets = Secrets.draw(ids)
        self.keyring = SimulatedKeyring()
        self.fleet_keys = SimulatedFleetKeys(self.keyring, run.streams.stream("controller/keys"))
        disk = SimulatedDisk()
        disk.faults.delay_ms = plan.sync_ms
        self.sight = Sight(rows=disk.state(JournalState).rows)
        self.controllers = self._made_controllers(ClusterId(ids.new("cl")), disk)
        self.nodes = self._made_nodes()

    def _made_controllers(self, cluster: ClusterId, disk: SimulatedDisk) -> list[ControllerHost]:
        plan = self.plan
        installation = Installation(
            begin=self.secrets.begin(cluster, self.fleet_keys),
            engine_secret=self.secrets.engine,
            keyring=self.keyring,
            fleet_keys=self.fleet_keys,
            verifier=SimulatedVerifier(self.keyring),
            policy=attrs.evolve(plan.policy, snapshot_rows=plan.snapshot_rows),
            gateway=plan.gateway,
        )
        return [
            ControllerHost(
                nursery=self._nursery,
                network=self.network,
                streams=self.run.streams,
                clock=clock,
                installation=installation,
                disk=disk,
                sight=self.sight,
                host=HOST if number == 1 else f"{HOST}-{number}",
            )
            for number, clock in enumerate(self.clocks, start=1)
        ]

    def _made_nodes(self) -> list[NodeHost]:
        plan = self.plan
        return [
            NodeHost(
                nursery=self._nursery,
                network=self.network,
                streams=self.run.streams,
                keyring=self.keyring,
                name=NodeId(f"sim-dgx-{number}"),
                number=number,
                controllers=[host.node_address for host in self.controllers[: plan.controllers_told]],
                data_port=DATA_PORT if plan.doors else None,
                sync_ms=plan.sync_ms,
                linger_ms=plan.linger_ms,
                ports_each=min(PORTS_EACH, _PORTS // plan.nodes),
            )
            for number in range(1, plan.nodes + 1)
        ]
