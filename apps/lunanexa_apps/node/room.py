"""The memory that a start may count on: what the machine has available, less what other starts have yet to take."""

from collections.abc import Callable

from lunanexa_core.lifecycle.observations import MemorySeen
from lunanexa_core.lifecycle.record import ReplicaRecord, ReplicaRules
from lunanexa_core.southbound.heartbeat import ReplicaState
from lunanexa_ports.memory import Memory
from lunanexa_ports.processes import ManagedProcess


def see_memory(memory: Memory, rules: ReplicaRules, promised_mib: Callable[[], int]) -> MemorySeen:
    """One look. Unknown also where the start waits for none."""
    reading = None if rules.memory_mib is None else memory.read()
    if reading is None:
        return MemorySeen()
    available_mib = max(0, reading.available_mib - promised_mib())
    return MemorySeen(available_mib=available_mib, total_mib=reading.total_mib)


def yet_to_take_mib(record: ReplicaRecord, rules: ReplicaRules, process: ManagedProcess | None) -> int:
    """What a start that still loads was let in for and does not hold yet."""
    loads = record.launched and record.state is ReplicaState.STARTING and record.ready_since_ms is None
    if rules.memory_mib is None or not loads:
        return 0
    held_mib = None if process is None else process.resident_mib()
    return max(0, rules.memory_mib - (held_mib or 0))
