"""One machine whose memory has room for one engine. What the last one held comes back long after its process went:
the next start waits for it. An engine that leaks ends its streams, goes and is started anew. Where somebody else
takes the room, the start is given up with its reason, and once the room is there again the model serves again."""

from typing import Any, Final

from lunanexa_core.southbound.heartbeat import ReplicaState
from lunanexa_simulation.client import Ending
from lunanexa_simulation.faults import crash_engine
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import at_rest, listed, served, until_listed
from lunanexa_simulation.trace import virtual_ms
from lunanexa_simulation.world import DEPLOYMENT, World, open_world
from lunanexa_simulation.world_plan import WorldPlan

ENGINE_MIB: Final = 70 * 1024
LEAKED_MIB: Final = 8
"""What an engine may leak, one MiB a call."""
RELEASE_MS: Final = 10_000
WAIT_MS: Final = 20_000
NEIGHBOUR_MIB: Final = 100 * 1024
PLAN: Final = WorldPlan(
    engine_arguments=("--ttft-ms", "32", "--itl-ms", "40", "--fault", "leak"),
    restart_budget=3,
    engine_memory={
        "memory_mib": ENGINE_MIB,
        "memory_wait_ms": WAIT_MS,
        "memory_limit_mib": ENGINE_MIB + LEAKED_MIB,
    },
)
STREAMS: Final = 3


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        machine, memory = world.nodes[0].machine, world.nodes[0].memory
        machine.faults.resident_mib = ENGINE_MIB
        machine.faults.release_ms = RELEASE_MS

        def look() -> None:
            free_mib = memory.total_mib - memory.used_mib - machine.held_mib()
            if free_mib < 0 and memory.used_mib < NEIGHBOUR_MIB:
                world.check("no engine starts before there is room for it", holds=False, told=free_mib)

        run.checks.append(look)
        await world.start()
        await world.deploy()
        await until_listed(world, "at first")
        await _replaced(world)
        await _leaks(world)
        await _no_room(world)
        await _room_again(world)
        await world.stop()
        run.checks.remove(look)


async def _replaced(world: World) -> None:
    """A change of the deployment: the old engine stops, the new one waits for what it held."""
    await world.deploy(slots=PLAN.engine_slots + 1)
    await world.until(
        "the next engine awaits memory", lambda: _state(world) is ReplicaState.AWAITING_MEMORY, within_ms=60_000
    )
    began_ms = virtual_ms()
    world.check("nothing runs meanwhile", not world.nodes[0].engines())
    world.check("and nothing is listed", not await listed(world))
    await until_listed(world, "when the memory is back")
    world.check("not before it was back", virtual_ms() - began_ms > RELEASE_MS - 3_000, virtual_ms() - began_ms)


async def _leaks(world: World) -> None:
    start = world.newest_start()
    leaked_mib = sum(process.leaked_mib() for process in world.nodes[0].engines())
    for number in range(LEAKED_MIB + 1 - STREAMS - leaked_mib):
        answer = await world.client.chat(world.prompt(f"leak {number}", max_tokens=1))
        world.check("a leak answers", answer.ending is Ending.WHOLE, answer)
    async with world.streams(STREAMS, "while it leaks too much") as streams:
        await world.until(
            "an engine over its limit drains", lambda: _state(world) is ReplicaState.DRAINING, within_ms=10_000
        )
    for body, answer in streams:
        world.check("what ran was finished", answer.ending is Ending.WHOLE, answer)
        world.check_answer("as the engine's answer", body, answer)
    await world.until("a new start is there", lambda: world.newest_start() not in (None, start), within_ms=90_000)
    await until_listed(world, "after the leak")
    ended = await _exit(world)
    told = f"holds {ENGINE_MIB + LEAKED_MIB + 1} MiB, its limit is {ENGINE_MIB + LEAKED_MIB} MiB"
    world.check("the reason names limit and figure", (ended["kind"], ended["detail"]) == ("memory_limit", told), ended)
    await served(world, "after the leak")


async def _no_room(world: World) -> None:
    """Somebody else takes the memory, and the engine crashes."""
    start = world.newest_start()
    assert start is not None
    memory = world.nodes[0].memory
    usual_mib, memory.used_mib = memory.used_mib, NEIGHBOUR_MIB
    crash_engine(world, start)
    await world.until("the start is given up", lambda: _state(world) is ReplicaState.FAILED, within_ms=300_000)
    ended = await _exit(world)
    free_mib = memory.total_mib - NEIGHBOUR_MIB
    told = f"needs {ENGINE_MIB} MiB, {free_mib} MiB were available after {WAIT_MS // 1000} s"
    world.check("the reason names both figures", (ended["kind"], ended["detail"]) == ("no_memory", told), ended)
    world.check("nothing was started", not world.nodes[0].engines())
    refused = await world.client.chat(world.prompt("when there is no room"))
    world.check("a caller is told that nothing serves", refused.status == 503, refused)
    memory.used_mib = usual_mib


async def _room_again(world: World) -> None:
    """Nobody can read the memory now, and that holds nothing up."""
    world.nodes[0].memory.readable = False
    await world.deploy()
    await until_listed(world, "when there is room again")
    await served(world, "when there is room again")
    await at_rest(world, "at the end")


def _state(world: World) -> ReplicaState | None:
    return next((report.state for report in world.kernel.state.replicas.values()), None)


async def _exit(world: World) -> dict[str, Any]:
    """The exit reason that the operator reads."""
    status, document = await world.operate("GET", "/admin/v1/status")
    world.check("the operator is told", status == 200, document)
    (entry,) = (one for one in document["deployments"] if one["deployment"] == DEPLOYMENT)
    (replica,) = entry["replicas"]
    reason: dict[str, Any] = replica["exit"]
    return reason
