"""Both pools of workers pass the one suite."""

from functools import partial

import pytest

from lunanexa_adapters.system.workers import SystemWorkers
from lunanexa_ports.conformance import workers
from lunanexa_simulation.workers import SimulatedWorkers


@pytest.mark.parametrize("check", workers.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("make", [SimulatedWorkers, partial(SystemWorkers, 2)], ids=["simulated", "system"])
async def test_workers(check: workers.Check, make: workers.MakeWorkers) -> None:
    await check(make)
