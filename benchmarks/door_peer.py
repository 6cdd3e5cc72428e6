"""The other process of the benchmark ``data_door``: a node's data listener, by itself.

``python -m benchmarks.door_peer IDENTITY ENGINE_PORT START CLUSTER`` prints its port. ``IDENTITY`` is the folder of the
node's certificate.
"""

import sys
from pathlib import Path

import trio

from lunanexa_adapters.crypto.credentials import TlsCredentials
from lunanexa_adapters.data_door.serve import serve_data_door
from lunanexa_adapters.http_server.listeners import addresses, open_listeners
from lunanexa_adapters.system.clock import SystemClock
from lunanexa_apps.node.door import Door
from lunanexa_core.deployment import EngineSpec
from lunanexa_core.ids import AssignmentId, ClusterId, DeploymentId, StartId
from lunanexa_core.lifecycle.record import ReplicaRecord
from lunanexa_core.southbound.documents import DesiredAssignment
from lunanexa_core.southbound.heartbeat import IdentityGrade, ReplicaState


async def _serve(identity: Path, engine_port: int, start: str, cluster: str) -> None:
    assignment = DesiredAssignment(
        assignment=AssignmentId("as_1"),
        generation=1,
        deployment=DeploymentId("default"),
        engine=EngineSpec(driver="reference", served_name="reference"),
    )
    record = ReplicaRecord(
        assignment=assignment,
        state=ReplicaState.READY,
        start=StartId(start),
        host="127.0.0.1",
        port=engine_port,
        grade=IdentityGrade.PROVEN,
    )
    door = Door(
        cluster=lambda: ClusterId(cluster),
        replicas=lambda: (record,),
        revoked=tuple,
        leased=lambda _: True,
        clock=SystemClock(),
    )
    listeners = await open_listeners("127.0.0.1", 0)
    print(addresses(listeners)[0][1], flush=True)
    await serve_data_door(listeners, door, TlsCredentials(identity))


if __name__ == "__main__":
    trio.run(_serve, Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
