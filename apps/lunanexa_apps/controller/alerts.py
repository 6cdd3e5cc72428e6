"""What an operator must look at: in the status document, while it is so."""

from collections.abc import Iterator

from lunanexa_apps.controller.kernel import Kernel
from lunanexa_core.canonical import JsonValue
from lunanexa_core.events import Liveness
from lunanexa_core.identity.certificate import VALID_MS
from lunanexa_core.identity.rotate import awaited
from lunanexa_core.ids import NodeId
from lunanexa_core.observed import NodeReading
from lunanexa_core.placement.standing import late_if_frozen
from lunanexa_core.southbound.skew import SKEW_WARN_MS, is_far_off


def alerts(kernel: Kernel) -> list[JsonValue]:
    """One for each kind, which names all nodes that are meant."""
    found = (*_eviction_alerts(kernel), *_identity_alerts(kernel), *_report_alerts(kernel), *_replay_alerts(kernel))
    return [{"code": code, "message": message} for code, message in found]


def _eviction_alerts(kernel: Kernel) -> Iterator[tuple[str, str]]:
    late = late_if_frozen(kernel.state, kernel.policy)
    if late:
        yield (
            "evictions_frozen",
            f"{len(late)} nodes are late at once: the fault is rather this controller's or the network's, and nothing"
            " is re-placed; drain those that are dead",
        )


def _identity_alerts(kernel: Kernel) -> Iterator[tuple[str, str]]:
    state, wall_ms = kernel.state, kernel.now().wall_ms
    lost = [name for name in awaited(state, kernel.observed) if state.nodes[name].liveness is Liveness.LOST]
    if lost:
        yield (
            "rotation_waits",
            f"the rotation of trust waits for {', '.join(lost)}, of which nothing is heard: bring them back, or shut"
            " them out with lunanexa node revoke",
        )
    late = [
        name
        for name, node in sorted(state.nodes.items())
        if node.liveness is Liveness.READY and node.certificates
        if node.certificates[-1].not_after_wall_ms - wall_ms < VALID_MS // 4
    ]
    if late:
        yield (
            "certificates_not_renewed",
            f"the certificates of {', '.join(late)} were not renewed in time: see the logs of their agents",
        )


def _report_alerts(kernel: Kernel) -> Iterator[tuple[str, str]]:
    nodes, heard = kernel.state.nodes, _heard(kernel)
    off = [name for name, one in heard.items() if is_far_off(one.heartbeat.skew_ms, one.heartbeat.skew_error_ms)]
    if off:
        yield (
            "clock_skew",
            f"the clocks of {', '.join(off)} and of this controller differ by more than {SKEW_WARN_MS // 1_000} s: set"
            " them by NTP (lunanexa node show)",
        )
    claiming = [
        name
        for name in sorted(kernel.observed.claiming)
        if nodes[name].public_key is not None and not nodes[name].retired
    ]
    if claiming:
        yield (
            "documents_not_shown",
            f"{', '.join(claiming)} say to follow documents that this store has not given, and show none that this"
            " cluster signed: they are not heard (docs/operations/recovery.md)",
        )
    withheld = [name for name, one in heard.items() if one.withheld]
    if withheld:
        yield (
            "reports_withheld",
            f"{', '.join(withheld)} report more changes than {kernel.policy.node_rows_per_minute} a minute: the rest"
            " waits, and they are granted nothing meanwhile",
        )


def _replay_alerts(kernel: Kernel) -> Iterator[tuple[str, str]]:
    if kernel.replay_differs:
        yield (
            "replay_differs",
            "the running state is not what its journal says: see replay_differs in the controller's log",
        )


def _heard(kernel: Kernel) -> dict[NodeId, NodeReading]:
    """What was heard last of each node that is there: what a lost one said is no matter any more."""
    nodes = kernel.state.nodes
    return {
        name: reading
        for name, reading in sorted(kernel.observed.nodes.items())
        if nodes[name].liveness in (Liveness.READY, Liveness.SUSPECT)
    }
