"""Controller and agent can't hear each other: for a moment, over a slow line, and beyond the lease, in both ways and
in either one. Requests take another way and go on until their node's lease ends them. A node that was silent for its
lease is granted nothing, and its model is not listed; heard again its engines serve on, the same as before."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lunanexa_core.events import Liveness, LivenessChanged
from lunanexa_core.ids import BootId, StartId
from lunanexa_core.outcomes import Outcome
from lunanexa_ports.processes import ProcessIdentity
from lunanexa_simulation.client import Answer, Ending
from lunanexa_simulation.faults import Way, join, part, slow_link
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import changes, listed, receipts_of, until_listed
from lunanexa_simulation.trace import virtual_ms
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(nodes=2, engine_arguments=("--ttft-ms", "32", "--itl-ms", "1024"))
TOKENS: Final = 14
"""A stream takes longer than a lease."""
STREAMS: Final = 4
BLIP_MS: Final = 3_000
"""With one interval before it less than three heartbeats that are missed."""
BACK_MS: Final = 40_000
"""An agent that was cut off tries again within half a minute: it waits for answers, and longer each time."""


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        await world.start()
        await world.deploy(replicas=2)
        await world.until("both replicas are routable", lambda: world.routable() == 2, within_ms=60_000)
        await until_listed(world, "at first")
        before = _standing(world)
        await _for_a_moment(world)
        await _over_a_slow_line(world)
        for way in (Way.TO_CONTROLLER, Way.TO_NODE):
            await _beyond_the_lease(world, way)
        await _nobody_is_heard(world)
        body = world.prompt("after all", max_tokens=2)
        answer = await world.client.chat(body)
        world.check("served after all", answer.ending is Ending.WHOLE, answer)
        world.check_answer("with the engine's answer", body, answer)
        world.check("engines and agents are the same throughout", _standing(world) == before, _standing(world))
        await world.stop()


async def _for_a_moment(world: World) -> None:
    heard = len(changes(world, LivenessChanged))
    async with world.streams(STREAMS, "while packets are lost", max_tokens=TOKENS) as streams:
        for way in Way:
            await world.dither(f"a moment {way.value}", 3_000)
            part(world, 0, way)
            await world.dither(f"for a moment {way.value}", BLIP_MS)
            join(world, 0)
    _check_streams(world, [answer for _, answer in streams], "while packets are lost")
    told = changes(world, LivenessChanged)[heard:]
    world.check("nobody is suspected for a moment's silence", not told, told)


async def _over_a_slow_line(world: World) -> None:
    heard = len(changes(world, LivenessChanged))
    slow_link(world, 0, (500, 1_500))
    async with world.streams(1, "over a slow line", max_tokens=TOKENS) as streams:
        pass
    slow_link(world, 0, world.plan.latency_ms)
    _check_streams(world, [answer for _, answer in streams], "over a slow line")
    told = changes(world, LivenessChanged)[heard:]
    world.check("nobody is suspected for a slow line", not told, told)


async def _beyond_the_lease(world: World, way: Way) -> None:
    """One node is cut off; the other serves on alone."""
    async with world.streams(STREAMS, f"cut off {way.value}", max_tokens=TOKENS) as streams:
        held = {one.start for one in world.kernel.observed.held.values()}
        world.check(f"both engines work, {way.value}", len(held) == 2, held)
        await world.dither(f"cut off {way.value}", 1_000)
        part(world, 0, way)
        await _until_lost(world, 0, way.value)
        world.check(f"one replica is routable, {way.value}", world.routable() == 1, world.routable())
        world.check(f"the model is listed, {way.value}", await listed(world))
        answer = await world.client.chat(world.prompt(f"of the other node {way.value}", max_tokens=2))
    cut = [one for one in streams if _start_of(world, one[1]) in {start for _, start in world.nodes[0].running()}]
    _check_cut(world, cut, f"cut off {way.value}")
    whole = [told for body, told in streams if (body, told) not in cut]
    _check_streams(world, [*whole, answer], f"cut off {way.value}")
    there = {start for _, start in world.nodes[1].running()}
    granted = world.sight.grants.granted_starts
    starts = [start for workload, one in granted.items() if workload == answer.workload for start in one]
    world.check(f"the node that is heard served it, {way.value}", set(starts) <= there, starts)
    join(world, 0)
    await _until_back(world, f"after a cut {way.value}")


async def _nobody_is_heard(world: World) -> None:
    """Every engine lives, and none serves anybody."""
    async with world.streams(STREAMS, "nobody is heard", max_tokens=TOKENS) as streams:
        for number in range(2):
            part(world, number, Way.BOTH)
        for number in range(2):
            await _until_lost(world, number, "when nobody is heard")
        world.check("an engine that lost its agent serves nobody", world.routable() == 0, world.routable())
        world.check("the model is not listed", not await listed(world))
        for stream in (True, False):
            refused = await world.client.chat(world.prompt("of nobody", stream=stream))
            honest = refused.status == 503 and refused.error in _NONE and refused.retry_after_s is not None
            world.check("a call is refused with 503 and Retry-After", honest, refused)
    _check_cut(world, streams, "when nobody is heard")
    for number in range(2):
        join(world, number)
    await _until_back(world, "when all are heard again")


_NONE: Final = (Outcome.STARTING.value, Outcome.NO_CAPACITY.value)


async def _until_lost(world: World, number: int, when: str) -> None:
    node = world.nodes[number].name
    await world.until(
        f"{node} is lost {when}",
        lambda: world.kernel.state.nodes[node].liveness is Liveness.LOST,
        within_ms=world.plan.policy.node_lease_ms + 3_000,
    )


async def _until_back(world: World, when: str) -> None:
    began_ms = virtual_ms()
    await world.until(f"both replicas are routable {when}", lambda: world.routable() == 2, within_ms=BACK_MS)
    world.trace(f"back after {virtual_ms() - began_ms} ms")


def _check_streams(world: World, answers: Sequence[Answer], when: str) -> None:
    for answer in answers:
        world.check(f"nobody notices {when}", answer.ending is Ending.WHOLE, answer)
        receipts = receipts_of(world, answer.workload)
        world.check(f"one receipt each, {when}", len(receipts) == 1, receipts)
        attempts = receipts[0].settlement.attempts
        world.check(f"nothing ran twice, {when}", len(attempts) == 1, attempts)


def _check_cut(world: World, streams: Sequence[tuple[Mapping[str, Any], Answer]], when: str) -> None:
    """A node's lease ends what is in progress there: by then a successor may serve."""
    world.check(f"there is something to cut {when}", bool(streams))
    for body, answer in streams:
        told = answer.ending is Ending.ERROR_FRAME and answer.error == Outcome.ENGINE_FAILED.value
        world.check(f"who is cut is told so {when}", told, answer)
        world.check_answer(f"and has the beginning of the engine's answer {when}", body, answer)
        receipts = receipts_of(world, answer.workload)
        world.check(f"one receipt each, {when}", len(receipts) == 1, receipts)
        attempts = receipts[0].settlement.attempts
        # By the data listener, or by the kernel, should that be first by a hair.
        once = [one.failure for one in attempts] in (["engine_cut"], ["node_lost"])
        world.check(f"nothing ran twice, {when}", once, attempts)


def _start_of(world: World, answer: Answer) -> StartId | None:
    """Where a call ended."""
    receipts = receipts_of(world, answer.workload)
    return receipts[0].settlement.attempts[-1].start if receipts else None


def _standing(world: World) -> tuple[list[ProcessIdentity], list[BootId | None]]:
    """The engine processes, and the boots of the agents."""
    processes = [process.identity for node in world.nodes for process in node.engines()]
    return processes, [node.boot for node in world.kernel.state.nodes.values()]
