"""Small fleets for tests of the rules: values in, values out."""

import attrs

from lunanexa_core.commands import Begin, EnrolNode, MintToken, ReportHeartbeat
from lunanexa_core.deployment import Assignment, Deployment, DeploymentSpec, EngineSpec
from lunanexa_core.events import (
    AssignmentPlaced,
    ClusterCreated,
    DeploymentApplied,
    EpochBegan,
    Event,
    KeyCreated,
    Liveness,
    LivenessChanged,
    NodeBooted,
    NodeEnrolled,
    ReplicaChanged,
    TrustChanged,
)
from lunanexa_core.identity.certificate import VALID_MS, NodeCertificate
from lunanexa_core.identity.trust import Authority, SigningKey, first_trust
from lunanexa_core.ids import (
    Alias,
    AssignmentId,
    BootId,
    ClusterId,
    DeploymentId,
    HolderId,
    KeyId,
    NodeId,
    RequestId,
    SessionId,
    StartId,
    TenantId,
    WorkloadId,
)
from lunanexa_core.kernel.apply import apply
from lunanexa_core.keys import ApiKey, Role, secret_digest
from lunanexa_core.leadership import Seat
from lunanexa_core.observed import NodeReading, Observed
from lunanexa_core.policy import Policy
from lunanexa_core.southbound.heartbeat import Heartbeat, IdentityGrade, ReplicaReport, ReplicaState
from lunanexa_core.state import State
from lunanexa_core.time import Instant
from lunanexa_core.workload import Dialect, Priority, WorkloadRequest

SECRET = "lnx_" + "k" * 20 + "0123456789abcdefghijklm"
NODE = NodeId("node-1")
BOOT = BootId("boot_1")
DEPLOYMENT = DeploymentId("d1")
ALIAS = Alias("tiny")
ASSIGNMENT = AssignmentId("asg_1")
START = StartId("st_1")
SESSION = SessionId("ses_1")
POLICY = Policy(queue_requests_max=2)
SEAT = Seat(HolderId("holder_1"), "one:8400")
NOW = Instant(1_000_000, 1_700_000_000_000)
AUTHORITY = Authority(fingerprint="f1" * 32, certificate="authority 1")
SIGNING_KEY = SigningKey(key_id="signing 1", public_key="e1" * 32)


def after(ms: int) -> Instant:
    return Instant(NOW.mono_ms + ms, NOW.wall_ms + ms)


def engine(**changes: object) -> EngineSpec:
    base = EngineSpec(driver="reference", served_name="tiny", binary="/usr/bin/lunanexa-engine", slots=2)
    return attrs.evolve(base, **changes)  # type: ignore[arg-type]  # changes name real fields


def spec(**changes: object) -> DeploymentSpec:
    base = DeploymentSpec(deployment=DEPLOYMENT, alias=ALIAS, engine=engine())
    return attrs.evolve(base, **changes)  # type: ignore[arg-type]  # changes name real fields


def api_key(**changes: object) -> ApiKey:
    base = ApiKey(
        key=KeyId("key_1"),
        tenant=TenantId("default"),
        digest=secret_digest(SECRET),
        roles=frozenset({Role.INFERENCE}),
    )
    return attrs.evolve(base, **changes)  # type: ignore[arg-type]  # changes name real fields


def report(**changes: object) -> ReplicaReport:
    base = ReplicaReport(
        assignment=ASSIGNMENT,
        generation=1,
        start=START,
        state=ReplicaState.READY,
        identity=IdentityGrade.PROVEN,
        host="127.0.0.1",
        port=9000,
        served_name="tiny",
        slots=2,
        pid=42,
    )
    return attrs.evolve(base, **changes)  # type: ignore[arg-type]  # changes name real fields


def heartbeat(sequence: int = 1, *replicas: ReplicaReport, node: NodeId = NODE, boot: BootId = BOOT) -> Heartbeat:
    return Heartbeat(
        node=node, boot=boot, sequence=sequence, epoch=1, generation=0, agent_version="0.1.0", replicas=replicas
    )


def reported(beat: Heartbeat, public_key: str = "aa" * 32) -> ReportHeartbeat:
    """A heartbeat as the node plane hands it on that has verified it."""
    return ReportHeartbeat(beat, public_key)


def request(number: int = 1, **changes: object) -> WorkloadRequest:
    base = WorkloadRequest(
        workload=WorkloadId(f"wl_{number}"),
        request=RequestId(f"req_{number}"),
        session=SESSION,
        key_digest=secret_digest(SECRET),
        alias=ALIAS,
        dialect=Dialect.CHAT,
        stream=True,
        body_digest="sha256:" + "0" * 64,
        body_bytes=100,
        reserved_tokens=1_024,
        priority=Priority.NORMAL,
        deadline_ms=60_000,
    )
    return attrs.evolve(base, **changes)  # type: ignore[arg-type]  # changes name real fields


def begin(**changes: object) -> Begin:
    base = Begin(cluster=ClusterId("cl_1"), version="0.1.0", authority=AUTHORITY, signing_key=SIGNING_KEY)
    return attrs.evolve(base, **changes)  # type: ignore[arg-type]  # changes name real fields


def authority_and_key(number: int) -> tuple[Authority, SigningKey]:
    """What a rotation brings."""
    return (
        Authority(fingerprint=f"{number:064x}", certificate=f"authority {number}"),
        SigningKey(key_id=f"signing {number}", public_key=f"{number:064x}"),
    )


def certificate(number: int = 1, *, issued: Instant = NOW) -> NodeCertificate:
    return NodeCertificate(
        serial=f"{number:x}", issuer=AUTHORITY.fingerprint, not_after_wall_ms=issued.wall_ms + VALID_MS
    )


def joining(node: NodeId = NODE, *, again: bool = False, **changes: object) -> tuple[MintToken, EnrolNode]:
    """How a node is let in and comes in."""
    digest = secret_digest(f"secret of {node}")
    base = EnrolNode(
        node=node,
        public_key="aa" * 32,
        agent_version="0.1.0",
        token=f"tok_{node}",
        digest=digest,
        certificate=certificate(),
    )
    enrol = attrs.evolve(base, **changes)  # type: ignore[arg-type]  # changes name real fields
    return MintToken(node=node, token=enrol.token, digest=digest, again=again, loopback=True), enrol


def enrolled_events(node: NodeId = NODE) -> list[Event]:
    return [
        NodeEnrolled(
            node=node, public_key="aa" * 32, agent_version="0.1.0", token=f"tok_{node}", certificate=certificate()
        ),
        NodeBooted(node, BOOT),
        LivenessChanged(node, Liveness.READY),
    ]


def serving_events() -> list[Event]:
    """A cluster with one ready replica of one deployment on one node."""
    return [
        ClusterCreated(ClusterId("cl_1")),
        EpochBegan(version="0.1.0"),
        TrustChanged(first_trust(AUTHORITY, SIGNING_KEY)),
        KeyCreated(api_key()),
        *enrolled_events(),
        DeploymentApplied(Deployment(spec=spec(), generation=1)),
        AssignmentPlaced(Assignment(assignment=ASSIGNMENT, deployment=DEPLOYMENT, node=NODE, generation=1)),
        ReplicaChanged(NODE, report()),
    ]


def state_of(events: list[Event], *, epoch: int = 1) -> State:
    state = State()
    for event in events:
        apply(state, event, epoch=epoch)
    return state


def heard(now: Instant = NOW) -> Observed:
    """What a kernel knows that heard its node just now and has a gateway's session."""
    observed = Observed(began_mono_ms=now.mono_ms)
    observed.nodes[NODE] = NodeReading(
        boot=BOOT, sequence=1, arrived_mono_ms=now.mono_ms, heartbeat=heartbeat(1, report())
    )
    observed.replicas[ASSIGNMENT] = report()
    observed.sessions[SESSION] = now.mono_ms + POLICY.session_lease_ms
    return observed
