"""A doorkeeper, and a machine whose facts a test sets."""

import attrs

from lunanexa_apps.node.door import Door, DoorLimits
from lunanexa_core.deployment import EngineSpec
from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_core.ids import AssignmentId, ClusterId, DeploymentId, StartId
from lunanexa_core.lifecycle.record import ReplicaRecord
from lunanexa_core.southbound.documents import DesiredAssignment
from lunanexa_core.southbound.heartbeat import IdentityGrade, ReplicaState
from lunanexa_core.time import Instant
from lunanexa_ports.clock import Clock
from lunanexa_ports.data_door import DoorRefusal, Passage

CLUSTER = ClusterId("cl_1")
START = StartId("start_1_abcdefghij")
GATEWAY = PeerCertificate(
    identity="lunanexa://cl_1/gateway/holder", serial="a1", not_before_s=0, not_after_s=1_000_000
)  # fmt: skip


def record(start: StartId | None = START, state: ReplicaState = ReplicaState.READY, **changes: object) -> ReplicaRecord:
    assignment = DesiredAssignment(
        assignment=AssignmentId("as_1"),
        generation=1,
        deployment=DeploymentId("de_1"),
        engine=EngineSpec(driver="reference", served_name="tiny", binary="/opt/engine"),
    )
    made = ReplicaRecord(
        assignment=assignment,
        state=state,
        start=start,
        last_start=start,
        host="127.0.0.1",
        port=9_000,
        launched=True,
        grade=IdentityGrade.PROVEN,
    )
    return attrs.evolve(made, **changes)  # type: ignore[arg-type]  # the test's business


class Machine(Clock):
    """What a door asks."""

    def __init__(self, limits: DoorLimits | None = None) -> None:
        self.mono_ms = 1_000
        self.wall_ms = 1_000
        self.cluster: ClusterId | None = CLUSTER
        self.records: list[ReplicaRecord] = [record()]
        self.revoked: set[str] = set()
        self.lease_until_ms = 2_000
        self.door = Door(
            cluster=lambda: self.cluster,
            replicas=lambda: self.records,
            revoked=lambda: self.revoked,
            leased=lambda now: now.mono_ms < self.lease_until_ms,
            clock=self,
            limits=limits,
        )

    def now(self) -> Instant:
        return Instant(self.mono_ms, self.wall_ms)

    def enter(self, closed: list[int], peer: PeerCertificate = GATEWAY, start: str | None = START) -> Passage:
        passage = self.door.admit(peer, start)
        assert not isinstance(passage, DoorRefusal), passage
        passage.on_close(lambda: closed.append(1))
        return passage
