"""Clocks that lie: a node's is ten minutes off, jumps and runs fast, another's runs slow, and somebody sets the
controller's back and forth. No node is suspected, no session lapses, a key's minute is used up as long as a minute
takes, and the time of the ledger goes on steadily. By how far a clock is off is told."""

from typing import Final

import trio

from lunanexa_core.events import LivenessChanged
from lunanexa_core.outcomes import Outcome
from lunanexa_core.southbound.skew import is_far_off
from lunanexa_simulation.client import Client, Ending
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.faults import jump_clock, run_clock
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import at_rest, changes, receipts_of, served, until_listed
from lunanexa_simulation.trace import virtual_ms
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(nodes=2, engine_arguments=("--ttft-ms", "32", "--itl-ms", "128"))
TOKENS: Final = 48
STREAMS: Final = 3
JUMPS: Final = 4
OFF_MS: Final = 600_000
FIVE_PERCENT_PPM: Final = 50_000
A_MINUTE: Final = 3
WINDOW_MS: Final = 60_000
TOLD_MS: Final = 5_000
"""Two heartbeats: one measures, the next tells."""
LEAN: Final = 1.1 * 1.05
"""By how much the ledger's minute may be shorter: it leans towards a clock that runs fast."""


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        jump_clock(world, "sim-dgx-1", world.nodes[0].clock, OFF_MS)
        run_clock(world, "sim-dgx-2", world.nodes[1].clock, -FIVE_PERCENT_PPM)
        await world.start()
        await world.deploy(replicas=2)
        await world.until("both replicas are routable", lambda: world.routable() == 2, within_ms=60_000)
        await until_listed(world, "with clocks that are off")
        await _skew_is_told(world, "from the beginning")
        blamed, starts = len(changes(world, LivenessChanged)), _starts(world)
        _, client = await world.make_key("limited", requests_per_minute=A_MINUTE)
        began_ms = await _used_up(world, client)
        await _jumps(world, client, "a node's", world.nodes[0].clock)
        await _skew_is_told(world, "after jumps of its clock")
        await _jumps(world, client, "the controller's", world.clock)
        await _skew_is_told(world, "after jumps of the controller's")
        run_clock(world, "the controller", world.clock, FIVE_PERCENT_PPM)
        run_clock(world, "sim-dgx-1", world.nodes[0].clock, FIVE_PERCENT_PPM)
        await _minute(world, client, began_ms)
        run_clock(world, "the controller", world.clock, -FIVE_PERCENT_PPM)
        await served(world, "by a controller whose clock runs slow")
        told = changes(world, LivenessChanged)[blamed:]
        world.check("no node is blamed for a clock", not told, told)
        world.check("no engine either", _starts(world) == starts, _starts(world))
        await world.stop()


async def _skew_is_told(world: World, when: str) -> None:
    """Of the first node, whose clock runs as fast as the controller's."""
    node = world.nodes[0]

    def is_told() -> bool:
        heartbeat = world.kernel.observed.nodes[node.name].heartbeat
        if heartbeat.skew_ms is None or heartbeat.skew_error_ms is None:
            return False
        true_ms = world.clock.now().wall_ms - node.clock.now().wall_ms
        return abs(heartbeat.skew_ms - true_ms) <= heartbeat.skew_error_ms

    await world.until(f"the skew of {node.name} is told {when}", is_told, within_ms=TOLD_MS)
    beats = [reading.heartbeat for reading in world.kernel.observed.nodes.values()]
    far_off = any(is_far_off(beat.skew_ms, beat.skew_error_ms) for beat in beats)
    _, status = await world.operate("GET", "/admin/v1/status")
    warned = [alert["code"] for alert in status["alerts"]]
    world.check(f"the status warns of it {when}", (["clock_skew"] if far_off else []) == warned, status["alerts"])
    told = [one["skew_ms"] for one in status["nodes"] if one["node"] == node.name]
    world.check(f"and tells it {when}", None not in told and len(told) == 1, told)


async def _used_up(world: World, client: Client) -> int:
    """Takes all that the key may have in a minute; when that was."""
    began_ms = virtual_ms()
    for number in range(A_MINUTE):
        answer = await client.chat(world.prompt(f"of the limited key ({number})", max_tokens=1))
        world.check("a request of the key's minute is served", answer.ending is Ending.WHOLE, answer)
    await _limited(world, client, "when its minute is used up")
    return began_ms


async def _limited(world: World, client: Client, when: str) -> None:
    answer = await client.chat(world.prompt("one too many", max_tokens=1))
    told = (answer.status, answer.error) == (429, Outcome.RATE_LIMITED.value)
    world.check(f"the key is at its limit {when}", told, answer)
    in_time = answer.retry_after_s is not None and answer.retry_after_s <= WINDOW_MS // 1_000 + 1
    world.check(f"for a minute at most {when}", in_time, answer)


async def _jumps(world: World, client: Client, whose: str, clock: SimulatedClock) -> None:
    """Back and forth under streams."""
    draw = world.run.streams.stream(f"jump/{whose}")
    async with world.streams(STREAMS, f"while {whose} clock jumps", max_tokens=TOKENS) as streams:
        for number in range(JUMPS):
            await world.dither(f"jump of {whose}", 1_500)
            way = 1 if number % 2 else -1
            jump_clock(world, whose, clock, way * draw.randint(OFF_MS // 10, 2 * OFF_MS))
            await _limited(world, client, f"after a jump of {whose} clock")
    for body, answer in streams:
        world.check(f"nobody notices a jump of {whose} clock", answer.ending is Ending.WHOLE, answer)
        world.check_answer(f"the answer is the engine's, {whose} clock", body, answer)
        receipts = receipts_of(world, answer.workload)
        world.check(f"one receipt each, {whose} clock", len(receipts) == 1, receipts)
    await at_rest(world, f"after jumps of {whose} clock")


async def _minute(world: World, client: Client, began_ms: int) -> None:
    """The window opens when its minute is over, neither long before nor long after."""
    opens_ms = began_ms + round(WINDOW_MS / LEAN)
    await trio.sleep((opens_ms - virtual_ms()) / 1_000)
    await _limited(world, client, "shortly before its minute is over")

    async def free() -> bool:
        return (await client.chat(world.prompt("after the minute", max_tokens=1))).ending is Ending.WHOLE

    left_ms = began_ms + round(WINDOW_MS * LEAN) + 2_000 - virtual_ms()
    await world.until_told("the key's minute is over", free, within_ms=left_ms, every_ms=1_000)


def _starts(world: World) -> list[object]:
    return [pair for node in world.nodes for pair in node.running()]
