"""A store that fails in the middle of an admission: the caller is answered in time, and nothing stays open."""

import json

import pytest
import trio
from trio.testing import MockClock

from lunanexa_core.outcomes import Outcome
from tests.apps.gateway_fleet import fleet

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Once"}], "max_tokens": 4}


@pytest.mark.parametrize(
    ("deadline_ms", "answered_s", "outcome"),
    [(2_000, 2, Outcome.DEADLINE_EXCEEDED), (60_000, 10, Outcome.STORE_UNAVAILABLE)],
)
@pytest.mark.parametrize("written", [True, False])
async def test_a_caller_is_not_kept_until_the_store_is_back(
    deadline_ms: int, answered_s: float, outcome: Outcome, written: bool, autojump_clock: MockClock
) -> None:
    async with fleet(autojump_clock) as world:
        body = json.dumps(CHAT).encode()
        began_s = trio.current_time()
        # The write may be there all the same; reading it back has to wait.
        world.disk.faults.unknown_outcomes, world.disk.faults.delay_ms = int(written), 20 * written
        world.disk.faults.full = not written
        async with trio.open_nursery() as nursery:

            async def fall_silent() -> None:
                await trio.sleep(0.01)
                world.disk.faults.unavailable = True
                await trio.sleep(40)
                world.disk.faults.unavailable = world.disk.faults.full = False

            nursery.start_soon(fall_silent)
            sink = await world.ask(body, headers={"x-lunanexa-deadline-ms": str(deadline_ms)})
            assert trio.current_time() - began_s == pytest.approx(answered_s, abs=0.1)
            assert sink.refusal is not None
            assert sink.refusal.outcome is outcome
        while world.kernel.state.open or not world.kernel.store_ok:
            await trio.sleep(0.1)
        # What was written all the same has its one receipt.
        assert [receipt.settlement.detail for receipt in world.receipts()] == ["not_admitted_in_time"] * written
        whole = await world.ask(body)
        assert whole.status == 200
        assert world.at_rest()


async def test_a_departure_is_seen_while_the_store_is_away(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        world.disk.faults.full = True
        began_s = trio.current_time()
        with trio.move_on_after(1):
            await world.ask(json.dumps(CHAT).encode())
        assert trio.current_time() - began_s < 4
        world.disk.faults.full = False
        while not world.kernel.store_ok:
            await trio.sleep(0.1)
        assert world.at_rest()
