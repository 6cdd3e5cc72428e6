"""What the status document says of the fleet."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class ReplicaView:
    """One replica as the controller has it."""

    node: str
    start: str | None
    pid: int | None
    routable: bool
    told: str
    """Its state, and what is in the way of requests."""


def replicas_of(status: Mapping[str, Any]) -> dict[str, ReplicaView]:
    """The replicas of the one deployment, by node."""
    (deployment,) = status["deployments"]
    return {
        one["node"]: ReplicaView(
            node=one["node"],
            start=one["start"],
            pid=one["pid"],
            routable=one["routable"],
            told=f"{one['state']}, {one['not_routable'] or 'routable'}",
        )
        for one in deployment["replicas"]
    }


def state_of(status: Mapping[str, Any], node: str) -> str | None:
    """The liveness of a node; ``None``: it is not known."""
    return next((one["state"] for one in status["nodes"] if one["node"] == node), None)


def lacking_nodes(status: Mapping[str, Any], nodes: Sequence[str]) -> str | None:
    """Why not every node is ready, for a controller that writes."""
    if status["recovering"] or not status["store_ok"]:
        return f"the controller can't write its store; it is recovered for {status['recovering']}"
    late = {node: state for node in nodes if (state := state_of(status, node)) != "ready"}
    return f"nodes are {late}" if late else None


def lacking_replicas(status: Mapping[str, Any], nodes: Sequence[str]) -> str | None:
    """Why not every node has a replica that is granted requests."""
    replicas = replicas_of(status)
    missing = {
        node: replicas[node].told if node in replicas else "not placed"
        for node in nodes
        if node not in replicas or not replicas[node].routable
    }
    return f"replicas are {missing}" if missing else None


def at_rest(status: Mapping[str, Any], requests: Mapping[str, Any]) -> str | None:
    """Which counter is not at rest when nobody asks for anything."""
    (deployment,) = status["deployments"]
    counted = {
        "waiting in the queue": deployment["queue"]["waiting"],
        "granted a slot": deployment["queue"]["running"],
        "open": len(requests["open"]),
    }
    for replica in deployment["replicas"]:
        counted[f"running on {replica['node']}"] = replica["running"]
        counted[f"waiting on {replica['node']}"] = replica["waiting"]
    busy = {name: count for name, count in counted.items() if count != 0}
    return f"not at rest: {busy}" if busy else None
