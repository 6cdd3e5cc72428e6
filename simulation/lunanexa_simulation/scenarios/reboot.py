"""A node reboots: under streams, then again and again while its engine is being started. Between boots, and once
without one, strangers get the numbers of its past processes. They get no signal, no record of a past start is left,
and each time the engine is started anew, once."""

from typing import Final

import trio

from lunanexa_core.ids import StartId
from lunanexa_core.outcomes import Outcome
from lunanexa_simulation.client import Ending
from lunanexa_simulation.faults import crash_agent, crash_engine, reboot_node
from lunanexa_simulation.process import SimulatedProcess
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import at_rest, receipts_of, served, until_listed
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(restart_budget=50)
STREAMS: Final = 3
REBOOTS: Final = 4
LAUNCH_MS: Final = 50
STARTING_MS: Final = 150
"""A reboot within this time meets the engine in its launcher's hands, starting, or just ready."""


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        world.nodes[0].machine.faults.spawn_ms = LAUNCH_MS
        await world.start()
        await world.deploy()
        await until_listed(world, "at first")
        strangers: list[SimulatedProcess] = []
        await _under_streams(world, strangers)
        await _without_a_reboot(world, strangers)
        world.check("strangers had the numbers of both", len(strangers) == 2, strangers)
        await _again_and_again(world, strangers)
        await served(world, "after all")
        for stranger in strangers:
            stranger.crash(code=0)
        await world.stop()


async def _under_streams(world: World, strangers: list[SimulatedProcess]) -> None:
    before = _start(world)
    async with world.streams(STREAMS, "until the power fails") as streams:
        await world.dither("power fails", 500)
        reboot_node(world)
    for body, answer in streams:
        world.check_answer("what came is a beginning", body, answer)
        honest = answer.ending is Ending.ERROR_FRAME and answer.error == Outcome.ENGINE_FAILED.value
        world.check("a stream whose machine went says so", honest, answer)
        told = [receipt.settlement.outcome for receipt in receipts_of(world, answer.workload)]
        world.check("and has one receipt, failed", told == [Outcome.ENGINE_FAILED], told)
    await _boot(world, strangers)
    await _anew(world, before, strangers, "after a reboot")


async def _without_a_reboot(world: World, strangers: list[SimulatedProcess]) -> None:
    before = _start(world)
    crash_agent(world)
    crash_engine(world, before)
    await trio.sleep(world.plan.linger_ms / 1_000 + 0.01)
    await _boot(world, strangers)
    await _anew(world, before, strangers, "after its number was reused")


async def _again_and_again(world: World, strangers: list[SimulatedProcess]) -> None:
    before = _start(world)
    draw = world.run.streams.stream("reboot/keep")
    reboot_node(world)
    for _ in range(REBOOTS):
        await _until_tried(world, strangers)
        await world.dither("reboot while it starts", STARTING_MS)
        reboot_node(world, keep_unsynced=draw.random() < 0.5)
    await _boot(world, strangers)
    await _anew(world, before, strangers, "after reboots in a row")


async def _until_tried(world: World, strangers: list[SimulatedProcess]) -> None:
    machine = world.nodes[0].machine
    past = set(machine.intents)
    await _boot(world, strangers)
    await world.until("a new start is tried", lambda: bool(machine.intents.keys() - past), within_ms=60_000)


async def _boot(world: World, strangers: list[SimulatedProcess]) -> None:
    """Strangers take the numbers of all that ran; then the agent comes."""
    machine = world.nodes[0].machine
    for start, identity in machine.intents.items():
        if identity is not None and not any(identity.pid == stranger.identity.pid for stranger in machine.living()):
            strangers.append(machine.reuse_pid(start))
    await world.dither("boot", 2_000)
    await world.start_agent()


async def _anew(world: World, before: StartId, strangers: list[SimulatedProcess], when: str) -> None:
    machine = world.nodes[0].machine

    def anew() -> bool:
        # What the controller last heard may be of before the reboot, and look well.
        running = [process.start for process in world.nodes[0].engines()]
        return before not in running and running == [world.newest_start()] and world.routable() == 1

    await world.until(f"the engine is started anew {when}", anew, within_ms=120_000)
    (report,) = world.kernel.state.replicas.values()
    world.check(f"its end is told as unobserved {when}", report.exit is not None and report.exit.kind == "unobserved")
    await until_listed(world, when)
    await at_rest(world, when)
    world.check(f"no record of a past start is left {when}", set(machine.intents) == {_start(world)}, machine.intents)
    processes = [process.start for process in world.nodes[0].engines()]
    world.check(f"one engine process {when}", processes == [_start(world)], processes)
    here = [one for one in strangers if one.identity.boot == machine.boot]
    signalled = [one.identity for one in here if one.exit is not None or one.terminated.is_set()]
    world.check(f"no stranger got a signal {when}", not signalled, signalled)


def _start(world: World) -> StartId:
    start = world.newest_start()
    assert start is not None
    return start
