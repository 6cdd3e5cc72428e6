"""Both readers of memory pass the one suite."""

from pathlib import Path

import pytest

from lunanexa_adapters.system.memory import SystemMemory
from lunanexa_ports.conformance import memory
from lunanexa_simulation.memory import SimulatedMemory


@pytest.mark.parametrize("check", memory.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["simulated", "system"])
async def test_memory(check: memory.Check, kind: str, tmp_path: Path) -> None:
    def simulated() -> memory.MemoryUnderTest:
        silent = SimulatedMemory(131_072)
        silent.readable = False
        return memory.MemoryUnderTest(SimulatedMemory(131_072, used_mib=4_096), silent)

    def system() -> memory.MemoryUnderTest:
        return memory.MemoryUnderTest(SystemMemory(), SystemMemory(tmp_path / "meminfo"))

    await check(simulated if kind == "simulated" else system)
