"""Streams, clocks, identifiers and the small simulated machines that a seed decides."""

import os
import subprocess
import sys

import pytest
from trio.testing import MockClock

from lunanexa_core.ids import is_identifier
from lunanexa_simulation.clock import EPOCH_WALL_MS, SimulatedClock
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.memory import SimulatedMemory
from lunanexa_simulation.metrics import SimulatedMetrics
from lunanexa_simulation.rng import Streams

DRAWS = """
from lunanexa_simulation.rng import Streams
streams = Streams(42)
print([streams.stream(name).getrandbits(64) for name in ("link/1", "link/2", "link/1")])
"""


def test_streams_are_the_same_in_every_process() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", DRAWS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    streams = Streams(42)
    assert printed == {f"{[streams.stream(name).getrandbits(64) for name in ('link/1', 'link/2', 'link/1')]}\n"}


def test_seeds_of_kept_failures_replay_for_ever() -> None:
    assert Streams(42).stream("link/1").getrandbits(64) == 0x114B5E7B498B27FC


def test_streams_do_not_touch_each_other() -> None:
    alone, disturbed = Streams(7), Streams(7)
    wanted = [alone.stream("link/1").random() for _ in range(5)]
    found = []
    for _ in range(5):
        disturbed.stream("link/2").random()
        found.append(disturbed.stream("link/1").random())
    assert found == wanted
    assert disturbed.stream("link/1") is disturbed.stream("link/1")
    assert Streams(8).stream("link/1").random() != wanted[0]


async def test_a_clock_goes_with_trios(mock_clock: MockClock) -> None:
    clock = SimulatedClock(mono_ms=500)
    for _ in range(1_000):
        mock_clock.jump(0.001)
    now = clock.now()
    assert (now.mono_ms, now.wall_ms) == (1_500, EPOCH_WALL_MS + 1_000)


async def test_a_jump_is_the_walls_alone(mock_clock: MockClock) -> None:
    clock = SimulatedClock()
    mock_clock.jump(1)
    clock.jump_wall(-600_000)
    mock_clock.jump(1)
    now = clock.now()
    assert (now.mono_ms, now.wall_ms) == (2_000, EPOCH_WALL_MS - 598_000)


async def test_a_reboot_is_the_monotonic_clocks_alone(mock_clock: MockClock) -> None:
    clock = SimulatedClock(mono_ms=500, rate_ppm=100_000)
    mock_clock.jump(10)
    clock.reboot()
    assert (clock.now().mono_ms, clock.now().wall_ms) == (0, EPOCH_WALL_MS + 11_000)
    mock_clock.jump(10)
    assert (clock.now().mono_ms, clock.now().wall_ms) == (11_000, EPOCH_WALL_MS + 22_000)


@pytest.mark.parametrize("rate_ppm", [-500_000, -200, 0, 200, 1_000_000])
async def test_a_rate_counts_from_when_it_is_set(mock_clock: MockClock, rate_ppm: int) -> None:
    clock = SimulatedClock()
    mock_clock.jump(10)
    clock.set_rate(rate_ppm)
    assert clock.now().mono_ms == 10_000
    mock_clock.jump(10)
    assert clock.now().mono_ms == 20_000 + rate_ppm // 100
    assert clock.now().wall_ms - EPOCH_WALL_MS == clock.now().mono_ms


async def test_identifiers_follow_the_seed(mock_clock: MockClock) -> None:
    def drawn(seed: int) -> list[object]:
        ids = SimulatedIds(Streams(seed).stream("ids"), SimulatedClock())
        return [ids.new("wl"), ids.secret(), ids.below(1_000_000)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert is_identifier(str(drawn(1)[0]))
    assert mock_clock.current_time() == 0


def test_memory_that_is_used_up_is_not_negative() -> None:
    memory = SimulatedMemory(1_000)
    memory.used_mib = 1_500
    reading = memory.read()
    assert reading is not None
    assert reading.available_mib == 0


def test_metrics_can_be_looked_at() -> None:
    metrics = SimulatedMetrics()
    metrics.count("lunanexa_requests_total", {"outcome": "ok"}, by=2)
    metrics.observe("lunanexa_wait_seconds", 1.5)
    assert metrics.value("lunanexa_requests_total", {"outcome": "ok"}) == 2
    assert metrics.value("lunanexa_requests_total", {"outcome": "internal"}) == 0
    assert metrics.series() == {
        ("lunanexa_requests_total", (("outcome", "ok"),)): 2.0,
        ("lunanexa_wait_seconds_count", ()): 1.0,
        ("lunanexa_wait_seconds_sum", ()): 1.5,
    }
