"""Both clocks pass the one suite."""

import pytest

from lunanexa_adapters.system.clock import SystemClock
from lunanexa_ports.clock import Clock
from lunanexa_ports.conformance import clock
from lunanexa_simulation.clock import SimulatedClock


@pytest.mark.parametrize("check", clock.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["simulated", "system"])
async def test_clock(check: clock.Check, kind: str) -> None:
    # A simulated machine has one clock, which all of its services share.
    machine: Clock = SimulatedClock() if kind == "simulated" else SystemClock()
    await check(lambda: machine if kind == "simulated" else SystemClock())
