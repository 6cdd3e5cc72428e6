"""Where gateways reach a replica: at its node's data listener, which was bound to the node when it enrolled, or on the
loopback of this machine. What a node says of itself leads nowhere else."""

import re
from typing import Final

import attrs

from lunanexa_core.drivers.specification import EngineAddress, parse_engine_url
from lunanexa_core.identity.names import node_identity
from lunanexa_core.southbound.heartbeat import ReplicaReport
from lunanexa_core.state import State

_LOOPBACK: Final = re.compile(r"127\.\d{1,3}\.\d{1,3}\.\d{1,3}\Z")


@attrs.frozen(kw_only=True)
class Reach:
    """``identity`` is the URI that whoever answers there must show, over TLS; ``None``: it is asked in the clear."""

    host: str
    port: int
    identity: str | None = None


def parse_data_address(text: str) -> EngineAddress | None:
    """The address in ``HOST:PORT`` or ``[HOST]:PORT``; ``None`` for anything else."""
    return None if "/" in text or ":" not in text else parse_engine_url(f"http://{text}")


def reach(state: State, report: ReplicaReport) -> Reach | None:
    """How the replica of an assignment is reached; ``None``: not at all."""
    if report.host is None or report.port is None:
        return None
    assignment = state.assignments[report.assignment]
    node = state.nodes[assignment.node]
    if node.data_address is not None:
        bound = parse_data_address(node.data_address)
        if bound is None or state.cluster is None:
            return None
        return Reach(host=bound.host, port=bound.port, identity=node_identity(state.cluster, node.node).uri)
    url = state.deployments[assignment.deployment].spec.engine.url
    adopted = None if url is None else parse_engine_url(url)
    if _is_loopback(report.host) or adopted == EngineAddress(report.host, report.port):
        return Reach(host=report.host, port=report.port)
    return None


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or _LOOPBACK.match(host) is not None
