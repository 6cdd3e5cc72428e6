"""What only the real clock, memory and worker threads show."""

import threading
from pathlib import Path

import pytest
import trio

from lunanexa_adapters.system.clock import SystemClock
from lunanexa_adapters.system.memory import SystemMemory, parse_meminfo
from lunanexa_adapters.system.workers import SystemWorkers
from lunanexa_ports.memory import MemoryReading

MEMINFO = "MemTotal:       131072000 kB\nMemFree:          100 kB\nMemAvailable:   65536000 kB\nSwapTotal:  0 kB\n"


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        (MEMINFO, MemoryReading(128_000, 64_000)),
        (MEMINFO.replace("MemAvailable", "MemOther"), None),
        (MEMINFO.replace("MemTotal", "Total"), None),
        (MEMINFO.replace("131072000", "0"), None),
        (MEMINFO.replace("131072000", "1024"), None),
        (MEMINFO.replace("65536000 kB", "-1 kB"), None),
        ("", None),
        ("\ufffd\ufffd", None),
    ],
)
def test_meminfo(text: str, reading: MemoryReading | None) -> None:
    assert parse_meminfo(text) == reading


def test_memory_of_a_directory_is_unknown(tmp_path: Path) -> None:
    assert SystemMemory(tmp_path).read() is None


def test_monotonic_time_is_since_boot() -> None:
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    assert abs(SystemClock().now().mono_ms / 1_000 - uptime_s) < 60


async def test_a_cancelled_caller_leaves_its_work_behind() -> None:
    """At once, though the work still holds the only place; who comes next waits for that place."""
    workers = SystemWorkers(1)
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait()
        ended.set()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(workers.run, work)
            while not begun.is_set():
                await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
        assert not ended.is_set()
        may_end.set()
        assert await workers.run(ended.is_set)


async def test_no_more_at_once_than_the_limit() -> None:
    workers = SystemWorkers(2)
    lock, running, most = threading.Lock(), 0, 0
    pair = threading.Barrier(2)

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        pair.wait()
        with lock:
            running -= 1

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(workers.run, work)
    assert most == 2
