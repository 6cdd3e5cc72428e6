"""Many workloads on one connection: more than there are slots, cancelled in the queue and in mid-stream, dropped and
resumed without a gap, resumed too late, too slow, and the controller's death under all of them. Each has one
receipt, and what its client was told is what the receipt says."""

from typing import Final

import trio

from lunanexa_core.contract.frames import Cancel, Cancelled, Completed, Failed
from lunanexa_core.outcomes import Outcome
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import at_rest, receipts_of, served, until_listed, waiting
from lunanexa_simulation.websocket_client import Heard, Session
from lunanexa_simulation.websocket_network import Closed
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(engine_slots=3)
MANY: Final = 6
LONG: Final = 600
"""Tokens of an answer with more events than a client may be sent without granting any."""
RESUME_MS: Final = 30_000


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        await world.start()
        await world.deploy()
        await until_listed(world, "at first")
        await _many(world)
        await _cancelled(world)
        await _resumed(world)
        await _too_late(world)
        await _too_slow(world)
        await _killed(world)
        await served(world, "after all")
        await world.stop()


async def _many(world: World) -> None:
    async with world.caller.connected() as session:
        heard = [
            session.submit(f"w{number}", world.prompt(f"one of many ({number})", stream=number % 3 != 0))
            for number in range(MANY)
        ]
        await world.until("all have ended", lambda: all(one.end for one in heard), within_ms=30_000)
    for one in heard:
        _check_whole(world, one, "on one connection")
    await at_rest(world, "after many on one connection")


async def _cancelled(world: World) -> None:
    async with world.caller.connected() as session:
        running = [session.submit(f"r{number}", world.prompt(f"runs ({number})", stream=True)) for number in range(3)]
        await world.until("the slots are taken", lambda: all(one.text for one in running), within_ms=5_000)
        queued = session.submit("q", world.prompt("waits", stream=True))
        await world.until("one waits", lambda: waiting(world) == 1, within_ms=1_000)
        await world.dither("cancel", 300)
        session.say(Cancel("q"))
        session.say(Cancel("r0"))
        await world.until("they are told", lambda: bool(queued.end and running[0].end), within_ms=3_000)
        await world.until("the others end", lambda: all(one.end for one in running), within_ms=10_000)
    for one in (queued, running[0]):
        told = one.end
        world.check("cancelled brings the receipt", isinstance(told, Cancelled) and told.receipt is not None, told)
        _check_receipt(world, one, Outcome.CANCELLED_BY_CALLER, "cancelled")
        world.check_answer("what came before is a beginning", one.body, one.answer())
    for one in running[1:]:
        _check_whole(world, one, "beside cancelled ones")
    await at_rest(world, "after cancellations")


async def _resumed(world: World) -> None:
    async with world.caller.connected() as session:
        kept = session.submit("kept", world.prompt("that is kept", stream=True), resumable=True)
        lost = session.submit("lost", world.prompt("that is not kept", stream=True))
        await world.until("both run", lambda: bool(kept.text and lost.text), within_ms=5_000)
        await world.dither("drop", 400)
    before = kept.seq
    await world.dither("stay away", RESUME_MS - 5_000)
    async with world.caller.connected() as session:
        session.resume("again", kept)
        await world.until("the kept one ends", lambda: bool(kept.end), within_ms=10_000)
    await at_rest(world, "after a resumption")
    world.check("it went on where it was cut", kept.seq > before, (before, kept.seq))
    _check_whole(world, kept, "over two connections")
    _check_receipt(world, lost, Outcome.CANCELLED_BY_CALLER, "dropped")


async def _too_late(world: World) -> None:
    async with world.caller.connected() as session:
        kept = session.submit("kept", world.prompt("nobody comes for", stream=True), resumable=True)
        await world.until("it runs", lambda: bool(kept.text), within_ms=5_000)
    await trio.sleep(RESUME_MS / 1_000 + 5)
    async with world.caller.connected() as session:
        await _gone(world, session, kept, "too late")
    _check_one_receipt(world, kept, "too late")
    await at_rest(world, "after a late resumption")


async def _too_slow(world: World) -> None:
    async with world.caller.connected() as session:
        slow = session.submit("slow", world.prompt("is never granted", stream=True, max_tokens=LONG), grants=False)
        await world.until("the connection is ended", lambda: session.over is not None, within_ms=60_000)
        told = isinstance(session.over, Closed) and session.over.code == 4008
        world.check("with its own close code", told, session.over)
    await at_rest(world, "after a slow consumer")
    _check_receipt(world, slow, Outcome.CANCELLED_BY_CALLER, "too slow")


async def _killed(world: World) -> None:
    async with world.caller.connected() as session:
        names = [f"k{number}" for number in range(5)]
        heard = [session.submit(one, world.prompt(one, stream=True), resumable=one != "k0") for one in names]
        await world.until("three run", lambda: sum(bool(one.text) for one in heard) == 3, within_ms=5_000)
        await world.dither("kill", 300)
        world.controller.crash()
        world.trace("controller killed")
        await world.until("the client sees it", lambda: session.over is not None, within_ms=1_000)
        world.check("without a word", session.over == Closed(1006), session.over)
    await world.start_controller()
    await until_listed(world, "after the kill")
    await world.until("the dead gateway's are settled", lambda: not world.kernel.state.open, within_ms=30_000)
    await at_rest(world, "after the kill")
    async with world.caller.connected() as session:
        for name, one in zip(names, heard, strict=True):
            if one.end is None and one.accepted is not None and one.accepted.resume_token is not None:
                await _gone(world, session, one, name)
    for one in heard:
        if one.accepted is not None:
            _check_one_receipt(world, one, "over a kill")


async def _gone(world: World, session: Session, heard: Heard, when: str) -> None:
    session.resume(when.replace(" ", "-"), heard)
    await world.until(f"it is told what is gone, {when}", lambda: bool(heard.end), within_ms=2_000)
    world.check(f"it is gone, {when}", heard.error == "resume_gone", heard.end)
    assert isinstance(heard.end, Failed)
    address = f"/v1/workloads/{heard.workload}"
    world.check(f"its receipt has an address, {when}", heard.end.error["receipt"] == address, heard.end)
    status, found = await world.client.call("GET", address)
    world.check(f"where it is, {when}", status == 200 and found["receipt"] is not None, found)


def _check_whole(world: World, heard: Heard, when: str) -> None:
    world.check(f"it is completed, {when}", isinstance(heard.end, Completed), heard.end)
    world.check_answer(f"with the engine's answer, {when}", heard.body, heard.answer())
    _check_receipt(world, heard, None, when)


def _check_one_receipt(world: World, heard: Heard, when: str) -> None:
    receipts = receipts_of(world, heard.workload)
    world.check(f"it has one receipt, {when}", len(receipts) == 1, receipts)


def _check_receipt(world: World, heard: Heard, outcome: Outcome | None, when: str) -> None:
    _check_one_receipt(world, heard, when)
    told = receipts_of(world, heard.workload)[0].settlement.outcome
    world.check(f"its receipt says so, {when}", told is outcome, told)
