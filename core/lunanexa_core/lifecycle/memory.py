"""When a start has the memory that it needs, and when an engine holds more than it may."""

from lunanexa_core.lifecycle.observations import MemorySeen
from lunanexa_core.lifecycle.record import ReplicaRules
from lunanexa_core.southbound.heartbeat import ExitReason


def available_now(seen: MemorySeen, known_mib: int | None) -> int | None:
    """What is available as far as anybody knows: a reading that failed does not overwrite a good one."""
    return known_mib if seen.available_mib is None else seen.available_mib


def fits(rules: ReplicaRules, available_mib: int | None) -> bool:
    """Whether a start may go on. Unknown is neither zero nor full, so that it holds nothing up."""
    return rules.memory_mib is None or available_mib is None or available_mib >= rules.memory_mib


def never_fits(rules: ReplicaRules, seen: MemorySeen) -> ExitReason | None:
    """Why no waiting can help, if so: the machine has less in all than a start needs."""
    if rules.memory_mib is None or seen.total_mib is None or seen.total_mib >= rules.memory_mib:
        return None
    return _no_memory(f"needs {rules.memory_mib} MiB, this machine has {seen.total_mib} MiB in all")


def waited_in_vain(rules: ReplicaRules, available_mib: int | None) -> ExitReason:
    """Why a start that waited for memory was given up."""
    waited_s = rules.memory_wait_ms / 1_000
    return _no_memory(f"needs {rules.memory_mib} MiB, {available_mib} MiB were available after {waited_s:g} s")


def over_limit(rules: ReplicaRules, resident_mib: int | None) -> ExitReason | None:
    """Why an engine that holds ``resident_mib`` must go, if it must."""
    limit_mib = rules.memory_limit_mib
    if limit_mib is None or resident_mib is None or resident_mib <= limit_mib:
        return None
    return ExitReason(kind="memory_limit", detail=f"holds {resident_mib} MiB, its limit is {limit_mib} MiB")


def _no_memory(detail: str) -> ExitReason:
    return ExitReason(kind="no_memory", detail=detail)
