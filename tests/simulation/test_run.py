"""The runner: what decides a verdict, and that a run is what its seed says and nothing else."""

import pytest
import structlog
import trio
from trio._core import _run as scheduler

from lunanexa_simulation.run import Run, deterministic_scheduling, run_simulated
from lunanexa_simulation.trace import TAIL_LINES, virtual_ms
from lunanexa_simulation.verdicts import LivenessBroken, SafetyBroken, Verdict

HOUR_MS = 3_600_000


async def race(run: Run) -> None:
    """Tasks that all want to run at the same instants: nothing but the scheduler orders them."""
    send, receive = trio.open_memory_channel[int](3)

    async def producer(number: int) -> None:
        for _ in range(5):
            await send.send(number)
            await trio.sleep(0.125)

    async def consumer(name: str) -> None:
        async for value in receive:
            run.trace.record(name, f"got {value}")

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as producers:
            for number in range(8):
                producers.start_soon(producer, number)
                nursery.start_soon(consumer, f"consumer {number}")
        send.close()


def test_one_seed_is_one_run() -> None:
    first, again = (run_simulated(race, 7, horizon_ms=HOUR_MS) for _ in range(2))
    assert first.verdict is Verdict.HELD
    assert first == again


def test_another_seed_is_another_run() -> None:
    digests = {run_simulated(race, seed, horizon_ms=HOUR_MS).digest for seed in range(5)}
    assert len(digests) == 5


def test_time_is_virtual_and_checks_see_each_quiescent_instant() -> None:
    seen: list[int] = []

    async def main(_: Run) -> None:
        await trio.sleep(1)
        await trio.sleep(24 * 3_600)

    result = run_simulated(main, 1, horizon_ms=48 * HOUR_MS, on_quiescent=[lambda: seen.append(virtual_ms())])
    assert result.virtual_ms == 24 * HOUR_MS + 1_000
    assert seen == [0, 1_000]
    assert result.instants == 2


def test_a_task_that_a_check_wakes_runs_before_time_passes() -> None:
    woken = trio.Event()
    at: list[int] = []

    async def main(_: Run) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 60)
            await woken.wait()
            at.append(virtual_ms())

    run_simulated(main, 1, horizon_ms=HOUR_MS, on_quiescent=[woken.set])
    assert at == [0]


def test_a_deadlock_is_reported_with_the_tasks() -> None:
    async def wait_for_nobody() -> None:
        await trio.Event().wait()

    async def main(_: Run) -> None:
        await trio.sleep(3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_nobody)
            nursery.start_soon(wait_for_nobody)

    result = run_simulated(main, 1, horizon_ms=HOUR_MS)
    assert result.verdict is Verdict.LIVENESS_BROKEN
    assert result.problem is not None
    assert result.problem.startswith("deadlock")
    assert result.detail.count("wait_for_nobody") >= 2
    assert result.virtual_ms == 3_000


def test_the_horizon_ends_a_run_that_does_not_end() -> None:
    async def main(_: Run) -> None:
        while True:
            await trio.sleep(60)

    result = run_simulated(main, 1, horizon_ms=HOUR_MS)
    assert result.verdict is Verdict.LIVENESS_BROKEN
    assert result.problem == f"horizon: not over after {HOUR_MS} virtual ms"
    assert result.virtual_ms == HOUR_MS


def test_broken_safety_outranks_the_crashes_around_it() -> None:
    def check() -> None:
        if virtual_ms() == 1_000:
            raise SafetyBroken("planted: broken")

    async def crash() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise KeyError("cleanup")

    async def main(_: Run) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash)
            await trio.sleep(1)
            await trio.sleep(1)

    result = run_simulated(main, 1, horizon_ms=HOUR_MS, on_quiescent=[check])
    assert (result.verdict, result.problem) == (Verdict.SAFETY_BROKEN, "planted: broken")


def test_shielded_cleanup_gets_the_time_it_needs_after_something_broke() -> None:
    cleaned: list[int] = []

    def check() -> None:
        if virtual_ms() == 1_000:
            raise SafetyBroken("planted: broken")

    async def main(_: Run) -> None:
        try:
            await trio.sleep(1)
            await trio.sleep(1)
        finally:
            with trio.move_on_after(5, shield=True):
                await trio.sleep_forever()
            cleaned.append(virtual_ms())

    result = run_simulated(main, 1, horizon_ms=HOUR_MS, on_quiescent=[check])
    assert result.verdict is Verdict.SAFETY_BROKEN
    assert cleaned == [6_000]


def test_a_shield_that_never_opens_is_a_deadlock_and_not_a_hang() -> None:
    async def main(_: Run) -> None:
        with trio.CancelScope(shield=True):
            await trio.Event().wait()

    result = run_simulated(main, 1, horizon_ms=HOUR_MS)
    assert result.verdict is Verdict.LIVENESS_BROKEN
    assert result.problem is not None
    assert result.problem.startswith("deadlock")


def test_a_bug_of_a_checker_ends_the_run() -> None:
    def check() -> None:
        raise KeyError("of the checker")

    async def main(_: Run) -> None:
        await trio.sleep(1)

    assert run_simulated(main, 1, horizon_ms=HOUR_MS, on_quiescent=[check]).verdict is Verdict.CRASHED


def test_other_errors_are_crashes() -> None:
    async def main(_: Run) -> None:
        raise ValueError("of the program")

    result = run_simulated(main, 1, horizon_ms=HOUR_MS)
    assert (result.verdict, result.problem) == (Verdict.CRASHED, "ValueError: of the program")
    assert "in main" in result.detail


def test_a_broken_promise_of_a_scenario_is_liveness() -> None:
    async def main(_: Run) -> None:
        raise LivenessBroken("served: not within 10 ms")

    assert run_simulated(main, 1, horizon_ms=HOUR_MS).verdict is Verdict.LIVENESS_BROKEN


def test_the_newest_lines_are_kept() -> None:
    async def main(run: Run) -> None:
        for number in range(TAIL_LINES + 10):
            run.trace.record("actor", f"event {number}")

    result = run_simulated(main, 1, horizon_ms=HOUR_MS)
    assert len(result.tail) == TAIL_LINES
    assert result.tail[-1].endswith(f"event {TAIL_LINES + 9}")


def test_threads_are_refused() -> None:
    async def main(_: Run) -> None:
        async with trio.open_nursery() as nursery:
            release = trio.Event()
            nursery.start_soon(trio.to_thread.run_sync, lambda: trio.from_thread.run(release.wait))
            try:
                await trio.sleep(1)
            finally:
                release.set()

    assert run_simulated(main, 1, horizon_ms=HOUR_MS).verdict is Verdict.CRASHED


def test_the_determinism_switch_and_trios_randomness_are_put_back() -> None:
    names = vars(scheduler)
    flag, state = names["_ALLOW_DETERMINISTIC_SCHEDULING"], scheduler._r.getstate()
    for before in (False, True):
        names["_ALLOW_DETERMINISTIC_SCHEDULING"] = before
        with deterministic_scheduling(1):
            assert names["_ALLOW_DETERMINISTIC_SCHEDULING"] is True
        assert names["_ALLOW_DETERMINISTIC_SCHEDULING"] is before
    names["_ALLOW_DETERMINISTIC_SCHEDULING"] = flag
    assert scheduler._r.getstate() == state


def test_logs_go_into_the_run_and_nowhere_else(capfd: pytest.CaptureFixture[str]) -> None:
    before = structlog.get_config()
    said: list[str] = []

    async def main(run: Run) -> None:
        log = structlog.get_logger()
        log.info("event_name", place=object(), count=3)
        try:
            raise ValueError("cause")
        except ValueError:
            log.exception("failed")
        said.extend(run.logs.since(0))

    result = run_simulated(main, 1, horizon_ms=HOUR_MS)
    assert result.verdict is Verdict.HELD
    assert said == [
        '{"count":3,"event":"event_name","level":"info","place":"object"}',
        '{"error":"ValueError: cause","event":"failed","level":"error"}',
    ]
    assert structlog.get_config() == before
    assert capfd.readouterr() == ("", "")
