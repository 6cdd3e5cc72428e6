"""One node, one model: it enrols and serves; its engine crashes, then the controller is killed, both under
running streams; everything recovers; the service drains and stops."""

from typing import Final

import trio

from lunanexa_core.outcomes import Outcome
from lunanexa_simulation.client import Ending
from lunanexa_simulation.faults import crash_controller, crash_engine
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import SERVED, receipt_of, served, until_listed
from lunanexa_simulation.trace import virtual_ms
from lunanexa_simulation.world import World, open_world

STREAMS: Final = 3
DITHER_MS: Final = 500
"""Less than a stream takes: each is cut somewhere in its middle."""


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run) as world:
        await world.start()
        await world.deploy()
        await until_listed(world, "at first")
        await served(world, "at first")
        await _engine_crash(world)
        await _controller_kill(world)
        await trio.sleep(30)
        await served(world, "after a quiet time")
        await _drain(world)
        await world.stop()


async def _engine_crash(world: World) -> None:
    """The engine dies under running streams: they end honestly, and the replica comes back as a new start."""
    start, before = world.newest_start(), len(world.receipts)
    assert start is not None
    async with world.streams(STREAMS, "until the engine dies") as streams:
        await world.dither("engine crash", DITHER_MS)
        crash_engine(world, start)
    for body, answer in streams:
        world.check_answer("what a cut stream brought is a beginning", body, answer)
        honest = answer.ending is Ending.ERROR_FRAME and answer.error == Outcome.ENGINE_FAILED.value
        world.check("a stream that its engine cut says so", honest, answer)
        receipt = receipt_of(world, answer.workload)
        failed = receipt is not None and receipt.settlement.outcome is Outcome.ENGINE_FAILED
        world.check("and has one receipt, failed", failed, receipt)
    world.check("no other receipt came of it", len(world.receipts) == before + STREAMS)
    await world.until(
        "the replica is back as a new start", lambda: world.newest_start() not in (None, start), within_ms=60_000
    )
    await until_listed(world, "again")
    await served(world, "after the engine's crash")


async def _controller_kill(world: World) -> None:
    """The controller dies under running streams: its successor settles them and finds the engine as it is."""
    epoch, start, before = world.kernel.epoch, world.newest_start(), len(world.receipts)
    async with world.streams(STREAMS, "until the controller dies") as streams:
        await world.dither("controller kill", DITHER_MS)
        crash_controller(world)
    for body, answer in streams:
        world.check_answer("what the client got is a beginning", body, answer)
        world.check("a client whose controller died sees its connection break", answer.ending is Ending.CUT, answer)
    await world.start_controller()
    began_ms = virtual_ms()
    world.check("the epoch is higher", world.kernel.epoch > epoch, world.kernel.epoch)
    await until_listed(world, "by the new controller")
    world.check("it is the same engine process", world.newest_start() == start, world.newest_start())
    await served(world, "by the new controller")
    await world.until("everything is settled", lambda: not world.kernel.state.open, within_ms=60_000)
    lease_ms = world.plan.policy.session_lease_ms
    world.check("not before a gateway could have presented it again", virtual_ms() >= began_ms + lease_ms)
    for _, answer in streams:
        receipts = [receipt for receipt in world.receipts if receipt.workload == answer.workload]
        told = [receipt.settlement.detail for receipt in receipts]
        world.check("a cut workload is settled once, by the new controller", told == ["controller_restarted"], told)
    world.check("no other receipt came of it either", len(world.receipts) == before + STREAMS + SERVED)


async def _drain(world: World) -> None:
    """Nothing is held any more, and nothing new comes in."""
    observed, state = world.kernel.observed, world.kernel.state
    held = (state.open_of_key, state.open_of_deployment, observed.held, observed.slots_held, observed.admitted_mono_ms)
    world.check("at rest every counter is zero", not any(held), held)
    status, document = await world.operate("POST", "/admin/v1/drain")
    world.check("draining, with nothing in flight", (status, document) == (200, {"draining": True, "in_flight": 0}))
    answer = await world.client.chat(world.prompt("too late"))
    refused = answer.ending is Ending.REFUSED and answer.error == Outcome.DRAINING.value
    world.check("a draining service refuses with 503", refused and answer.status == 503, answer)
