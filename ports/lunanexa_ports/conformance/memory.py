"""What every memory reader must do, on a machine whose memory can be read and on one where it can't."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import attrs

from lunanexa_ports.memory import Memory


@attrs.frozen
class MemoryUnderTest:
    """One reader of a readable machine, one of a machine that says nothing."""

    readable: Memory
    silent: Memory


MakeMemory: TypeAlias = Callable[[], MemoryUnderTest]
Check: TypeAlias = Callable[[MakeMemory], Awaitable[None]]


async def check_reading_is_plausible(make: MakeMemory) -> None:
    reading = make().readable.read()
    assert reading is not None
    assert 0 <= reading.available_mib <= reading.total_mib
    assert reading.total_mib > 0


async def check_total_is_constant(make: MakeMemory) -> None:
    memory = make().readable
    assert len({reading.total_mib for reading in (memory.read(), memory.read()) if reading is not None}) == 1


async def check_unknown_is_none(make: MakeMemory) -> None:
    """What can't be read is neither zero nor full, and no exception."""
    assert make().silent.read() is None


CHECKS: Final[tuple[Check, ...]] = (
    check_reading_is_plausible,
    check_total_is_constant,
    check_unknown_is_none,
)
