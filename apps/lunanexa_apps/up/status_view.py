"""What ``lunanexa up`` reads of a status document: its one deployment's replicas. Tolerant, because a newer
controller may say more, and one that just started may say less."""

from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class ReplicaView:
    """One replica, as the controller last heard of it."""

    state: str
    current: bool
    """Whether this is news of the deployment as it is now. A state from before the last change, or from
    before its node was heard of again, says nothing of how the present start goes."""
    pid: int | None
    restarts: int
    exit_reason: str | None
    last_lines: tuple[str, ...]


def replicas_of(status: Any, deployment: str) -> tuple[ReplicaView, ...]:
    """The deployment's replicas; none when the document does not speak of it."""
    for entry in _objects(status, "deployments"):
        if entry.get("deployment") == deployment:
            generation, heard = entry.get("generation"), _nodes_heard_of(status)
            return tuple(_replica(replica, generation, heard) for replica in _objects(entry, "replicas"))
    return ()


def not_placed(status: Any, deployment: str) -> str | None:
    """Why the deployment has no place, if the controller says so."""
    for entry in _objects(status, "deployments"):
        reasons = entry.get("not_placed")
        if entry.get("deployment") == deployment and isinstance(reasons, dict):
            # A node without a reason is one that is just about to be given it.
            return "; ".join(f"{node}: {_joined(why)}" for node, why in reasons.items() if why) or None
    return None


def failed_for_good(replicas: tuple[ReplicaView, ...]) -> ReplicaView | None:
    """The first replica, when all of them have failed and none is tried again."""
    if replicas and all(replica.state == "failed" and replica.current for replica in replicas):
        return replicas[0]
    return None


def engine_pid(replicas: tuple[ReplicaView, ...]) -> int | None:
    """The engine process that serves (or, if none does, the one that is about to)."""
    serving = [replica.pid for replica in replicas if replica.state == "ready"]
    return next((pid for pid in [*serving, *(replica.pid for replica in replicas)] if pid is not None), None)


def describe_state(replicas: tuple[ReplicaView, ...], *, adopted: bool = False) -> str:
    """One phrase for a progress line. A server that is ``adopted`` runs already: only its answers are waited for."""
    if not replicas:
        return "waiting for a node"
    replica = replicas[0]
    if not replica.current:
        return "waiting for the node agent"
    if adopted and replica.state == "starting":
        return "waiting for the adopted server to answer"
    again = f", restart {replica.restarts}" if replica.restarts else ""
    reason = f" (engine {replica.exit_reason})" if replica.state == "backoff" and replica.exit_reason else ""
    return f"engine {replica.state}{again}{reason}"


def describe_exit(exit_document: Any) -> str | None:
    """How an engine process ended, in words; ``None`` when none has."""
    if not isinstance(exit_document, dict):
        return None
    kind, code, number = (exit_document.get(name) for name in ("kind", "code", "signal"))
    match kind:
        case "exited":
            return f"exited with status {code}"
        case "signalled":
            return f"was ended by signal {number}"
        case "spawn_failed":
            return "could not be started"
        case "start_timeout":
            return "was not ready in time"
        case "wrong_identity":
            return "is not the process that answers at its address"
        case "no_memory":
            return f"was not started for want of memory: it {exit_document.get('detail')}"
        case "memory_limit":
            return f"was stopped for its memory: it {exit_document.get('detail')}"
        case "cut_off":
            return "was stopped because its node was cut off from its controller for too long"
        case str():
            return f"ended: {kind}"
        case _:
            return None


def _nodes_heard_of(status: Any) -> frozenset[str]:
    ages = {str(node.get("node")): node.get("heartbeat_age_ms") for node in _objects(status, "nodes")}
    return frozenset(name for name, age in ages.items() if isinstance(age, int))


def _joined(reasons: Any) -> str:
    return ", ".join(str(reason) for reason in reasons) if isinstance(reasons, list) else str(reasons)


def _replica(document: dict[str, Any], generation: Any, heard: frozenset[str]) -> ReplicaView:
    ended = document.get("exit")
    lines = ended.get("last_lines") if isinstance(ended, dict) else None
    pid, restarts = document.get("pid"), document.get("restarts")
    return ReplicaView(
        state=str(document.get("state", "unknown")).lower(),
        current=document.get("generation", generation) == generation and str(document.get("node")) in heard,
        pid=pid if isinstance(pid, int) else None,
        restarts=restarts if isinstance(restarts, int) else 0,
        exit_reason=describe_exit(ended),
        last_lines=tuple(str(line) for line in lines) if isinstance(lines, list) else (),
    )


def _objects(document: Any, name: str) -> list[dict[str, Any]]:
    entries = document.get(name) if isinstance(document, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
