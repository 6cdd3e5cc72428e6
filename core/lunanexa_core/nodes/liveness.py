"""What silence means: suspect after three missed heartbeats, lost after the lease, by our own clock.

A new leader waits a whole lease from its beginning before it calls any node lost.
"""

from lunanexa_core.events import Liveness, LivenessChanged
from lunanexa_core.ids import NodeId
from lunanexa_core.observed import Observed
from lunanexa_core.policy import Policy
from lunanexa_core.state import State
from lunanexa_core.time import Instant


def silent_ms(observed: Observed, node: NodeId, now: Instant) -> int:
    """For how long this leader has heard nothing of a node; of one that it never heard, since it began."""
    reading = observed.nodes.get(node)
    return now.mono_ms - (observed.began_mono_ms if reading is None else reading.arrived_mono_ms)


def judge(observed: Observed, policy: Policy, node: NodeId, now: Instant) -> Liveness:
    """What a node is at this instant."""
    silence_ms = silent_ms(observed, node, now)
    if silence_ms >= policy.node_lease_ms:
        return Liveness.LOST
    if silence_ms >= policy.node_suspect_ms:
        return Liveness.SUSPECT
    return Liveness.READY if node in observed.nodes else Liveness.UNKNOWN


def liveness_events(state: State, observed: Observed, policy: Policy, now: Instant) -> list[LivenessChanged]:
    """Changes for the worse; for the better only a heartbeat counts."""
    events: list[LivenessChanged] = []
    for node_id, node in state.nodes.items():
        if node.public_key is None or node.retired:
            continue
        verdict = judge(observed, policy, node_id, now)
        if verdict in (Liveness.SUSPECT, Liveness.LOST) and verdict is not node.liveness:
            events.append(LivenessChanged(node_id, verdict))
    return events


def is_heard(observed: Observed, policy: Policy, node: NodeId, now: Instant) -> bool:
    """Whether this leader heard a node within its lease."""
    reading = observed.nodes.get(node)
    return reading is not None and now.mono_ms - reading.arrived_mono_ms < policy.node_lease_ms
