"""Both sources of identifiers pass the one suite."""

from itertools import count

import pytest

from lunanexa_adapters.system.clock import SystemClock
from lunanexa_adapters.system.ids import SystemIds
from lunanexa_ports.conformance import ids
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.rng import Streams


@pytest.mark.parametrize("check", ids.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["simulated", "system"])
async def test_ids(check: ids.Check, kind: str) -> None:
    streams, processes = Streams(seed=7), count()

    def simulated() -> SimulatedIds:
        return SimulatedIds(streams.stream(f"process/{next(processes)}/ids"), SimulatedClock())

    await check(simulated if kind == "simulated" else lambda: SystemIds(SystemClock()))
