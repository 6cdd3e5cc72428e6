"""Requests go to the engine that was started, and to nobody else. Other programs stand where it should: they name
another model or start, can't be read, lead elsewhere, or were at its port first. A process group outlives its leader,
and serves on while nobody looks; nothing starts before it is gone. What is only declared is asked where a deployment
allows it. Callers are refused honestly meanwhile, and served when the right engine is back."""

from typing import Any, Final

import trio

from lunanexa_apps.engine.app import ReferenceEngine
from lunanexa_apps.engine.settings import EngineSettings
from lunanexa_core.drivers.specification import LOOPBACK
from lunanexa_core.events import Liveness, ReplicaChanged
from lunanexa_core.ids import DeploymentId, StartId
from lunanexa_core.outcomes import Outcome
from lunanexa_core.southbound.heartbeat import IdentityGrade, ReplicaState
from lunanexa_simulation.client import Ending
from lunanexa_simulation.engine_program import BINARY, MODEL
from lunanexa_simulation.faults import crash_agent, crash_engine
from lunanexa_simulation.process import SimulatedProcess
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.impostor import ELSEWHERE, POSES, Impostor, Impostors, Pose
from lunanexa_simulation.scenarios.steps import PAUSE_S, at_rest, changes, refused_calls, served, until_listed
from lunanexa_simulation.world import DEPLOYMENT, MODEL_ALIAS, SERVED_NAME, World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(linger_ms=1_000)
STUCK_MS: Final = 12_000
"""So long a child stays in the kernel's hands when it was killed."""
BACK_MS: Final = 120_000
OURS: Final[dict[str, Any]] = {
    "driver": "reference",
    "binary": BINARY,
    "arguments": [*PLAN.engine_arguments],
    "start_timeout_ms": 5_000,
    "restart_budget": 2 * len(POSES),
}
ADOPTED: Final[dict[str, Any]] = {"driver": "generic_openai", "url": f"http://{ELSEWHERE.host}:{ELSEWHERE.port}"}
PERFECT: Final = Pose(told="all that it should", ending="")


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        await world.start()
        await _deploy(world, OURS)
        await until_listed(world, "at first")
        with world.watched("one start at a time, with all its processes", lambda: _two_starts(world)):
            await _wrong_programs(world)
            for fault in ("wrong-model", "wrong-start"):
                await _another_by_now(world, fault)
            await _deploy(world, OURS)
            await until_listed(world, "by an engine that stays what it is")
            await _a_port_that_was_ours(world)
            await _deploy(world, {**OURS, "slots": 3})  # Another generation has a fresh budget of starts.
            await world.until("it is there", lambda: _slots(world) == 3, within_ms=BACK_MS)
            await _a_group_without_its_leader(world)
        await _only_declared(world)
        await _deploy(world, OURS)
        await until_listed(world, "by an engine of ours again")
        await served(world, "after all")
        await at_rest(world, "after all")
        await world.stop()


async def _wrong_programs(world: World) -> None:
    machine, right = world.nodes[0].machine, _newest(world)
    impostors = Impostors(world.network, machine.programs[BINARY])
    elsewhere = Impostor(PERFECT, right)
    world.network.listen(ELSEWHERE.host, ELSEWHERE.port, elsewhere)
    usual, machine.programs[BINARY] = machine.programs[BINARY], impostors.program
    with world.watched("no impostor is granted a request", lambda: _granted_to(world, impostors.lives)):
        crash_engine(world, right)
        await world.until("the engine is gone", lambda: not world.routable(), within_ms=5_000)
        async with refused_calls(world, "while others stand there"):
            await world.until("the right engine is back", lambda: world.routable() == 1, within_ms=4 * BACK_MS)
    machine.programs[BINARY] = usual
    endings = {one.report.start: one.report.exit.kind for one in changes(world, ReplicaChanged) if one.report.exit}
    told = [(one.pose.told, endings.get(one.start)) for one in impostors.lives]
    world.check("each was told as what it is", told == [(pose.told, pose.ending) for pose in POSES], told)
    asked = {question for one in impostors.lives for question in one.asked}
    world.check("none was asked more than who it is", asked <= {("GET", path) for path in _LOOKS}, asked)
    world.check("and nobody went where they led", not elsewhere.asked, elsewhere.asked)
    world.network.close(ELSEWHERE.host, ELSEWHERE.port)
    await served(world, "by the right engine")


_LOOKS: Final = ("/health", "/v1/models", "/metrics")


async def _another_by_now(world: World, fault: str) -> None:
    """An engine that served ends at the first look that finds another there."""
    before, arguments = len(changes(world, ReplicaChanged)), [*PLAN.engine_arguments, "--fault", f"{fault},after=3"]
    await _deploy(world, {**OURS, "arguments": arguments})
    name = f"{fault} is found of what served"
    await world.until(name, lambda: _what_followed(world, before) is not None, within_ms=BACK_MS)
    followed = _what_followed(world, before)
    world.check(f"at the first look, by {fault}", followed == (ReplicaState.STOPPING, "wrong_identity"), followed)


def _what_followed(world: World, before: int) -> tuple[ReplicaState, str | None] | None:
    """What was told next of the first start that was told to be ready with the newest deployment."""
    generation, ready = world.kernel.state.deployments[DeploymentId(DEPLOYMENT)].runs, None
    for report in (event.report for event in changes(world, ReplicaChanged)[before:]):
        if report.start == ready:
            return report.state, None if report.exit is None else report.exit.kind
        if report.generation == generation and report.state is ReplicaState.READY:
            ready = report.start
    return None


async def _a_port_that_was_ours(world: World) -> None:
    """Engine and agent die, and a stranger gets the engine's number and port: it says all that it should."""
    node, start = world.nodes[0], _newest(world)
    port = next(port for port, one in node.machine.listeners.items() if one == node.engines()[0].identity)
    crash_agent(world)
    crash_engine(world, start)
    await world.until("nothing is left of the engine", lambda: not node.engines(), within_ms=BACK_MS)
    stranger, impostor = node.machine.reuse_pid(start), Impostor(PERFECT, start)
    node.machine.listeners[port] = stranger.identity
    world.network.listen(LOOPBACK, port, impostor)
    await world.dither("until the next agent", 3_000)
    await world.start_agent()
    await world.until(
        "another start serves", lambda: world.routable() == 1 and _newest(world) != start, within_ms=BACK_MS
    )
    world.check("nobody asked the stranger", not impostor.asked, impostor.asked)
    world.check("nor ended it", stranger.exit is None, stranger.exit)
    world.network.kill(LOOPBACK, port)
    del node.machine.listeners[port]
    stranger.crash(code=0)
    await served(world, "by another start")


async def _a_group_without_its_leader(world: World) -> None:
    """The program that is started only starts the engine, as a child of its group."""
    node, usual = world.nodes[0], world.nodes[0].machine.programs[BINARY]

    async def launcher(process: SimulatedProcess) -> int:
        process.fork(usual)
        await trio.sleep_forever()

    node.machine.programs[BINARY] = launcher
    crash_engine(world, _newest(world))
    await _until_another(world, "an engine below a launcher serves", _newest(world))
    async with world.streams(2, "while the launcher dies") as streams:
        start = _newest(world)
        await _launcher_dies(world, start)
        await _until_another(world, "the group is gone and another serves", start)
    told = {(answer.ending, answer.error) for _, answer in streams}
    world.check("who was served is told so", told == {(Ending.ERROR_FRAME, Outcome.ENGINE_FAILED.value)}, streams)
    crash_agent(world)
    start = _newest(world)
    await _launcher_dies(world, start)
    await world.until("the node is lost", lambda: _is(world, Liveness.LOST), within_ms=BACK_MS)
    world.check("the child lives, and listens", bool(node.machine.living(start)) and bool(node.machine.listeners))
    async with refused_calls(world, "while nobody looks after the child"):
        await world.dither("nobody looks", 5_000)
    node.machine.programs[BINARY] = usual
    await world.start_agent()
    with world.watched("the child is granted nothing", lambda: _granted(world, {start})):
        await _until_another(world, "the child is gone and another serves", start)
    await served(world, "after a group without its leader")


async def _launcher_dies(world: World, start: StartId) -> None:
    """At once; who is killed after it is stuck for a while."""
    machine = world.nodes[0].machine
    machine.faults.linger_ms = 0
    crash_engine(world, start)
    await world.until("the launcher is gone", lambda: machine.main_process(start) is None, within_ms=100)
    world.check("its child is not", len(machine.living(start)) == 1, machine.living(start))
    machine.faults.linger_ms = STUCK_MS


async def _only_declared(world: World) -> None:
    engine = ReferenceEngine(EngineSettings(names=(SERVED_NAME,)), MODEL, now_s=lambda: 0, new_id=lambda: "elsewhere")
    world.network.listen(ELSEWHERE.host, ELSEWHERE.port, engine)
    await _deploy(world, ADOPTED)
    await world.until("it is declared and ready", lambda: _grade(world) is IdentityGrade.DECLARED, within_ms=BACK_MS)
    async with refused_calls(world, "while that is not enough"):
        await trio.sleep(2 * PAUSE_S)
    await _deploy(world, ADOPTED, allow_declared=True)
    await until_listed(world, "where that is enough")
    await served(world, "by a declared engine")
    world.network.kill(ELSEWHERE.host, ELSEWHERE.port)
    other = Impostor(POSES[0], _newest(world))
    world.network.listen(ELSEWHERE.host, ELSEWHERE.port, other)
    await world.until("another model there is noticed", lambda: not world.routable(), within_ms=10_000)
    async with refused_calls(world, "while another model is there"):
        await trio.sleep(2 * PAUSE_S)
    world.check("it was asked who it is", {method for method, _ in other.asked} == {"GET"}, other.asked)
    world.network.kill(ELSEWHERE.host, ELSEWHERE.port)
    world.network.listen(ELSEWHERE.host, ELSEWHERE.port, engine)
    await until_listed(world, "when the right one is there")
    await served(world, "by the right one there")
    await _deploy(world, ADOPTED)
    world.check("what is not enough any more is granted nothing", world.routable() == 0)


async def _deploy(world: World, engine: dict[str, Any], **more: object) -> None:
    body = {"alias": MODEL_ALIAS, **more, "engine": {"served_name": SERVED_NAME, "slots": 4, **engine}}
    status, answer = await world.operate("PUT", f"/admin/v1/deployments/{DEPLOYMENT}", body)
    world.check("the deployment is accepted", status == 200, answer)


def _two_starts(world: World) -> str | None:
    starts = {process.start for process in world.nodes[0].engines()}
    return f"processes of {sorted(starts)} live at once" if len(starts) > 1 else None


def _granted_to(world: World, impostors: list[Impostor]) -> str | None:
    return _granted(world, {one.start for one in impostors})


def _granted(world: World, starts: set[StartId]) -> str | None:
    routable = {report.start for report in world.sight.routable(world.kernel, DeploymentId(DEPLOYMENT))}
    return f"{sorted(routable & starts)} would be granted requests" if routable & starts else None


def _slots(world: World) -> int:
    routable = world.sight.routable(world.kernel, DeploymentId(DEPLOYMENT))
    return sum(report.slots for report in routable)


def _newest(world: World) -> StartId:
    start = world.newest_start()
    assert start is not None
    return start


async def _until_another(world: World, name: str, than: StartId) -> None:
    await world.until(name, lambda: world.routable() == 1 and _newest(world) != than, within_ms=BACK_MS)


def _is(world: World, liveness: Liveness) -> bool:
    return world.kernel.state.nodes[world.nodes[0].name].liveness is liveness


def _grade(world: World) -> IdentityGrade | None:
    reports = [one for one in world.kernel.state.replicas.values() if one.state is ReplicaState.READY]
    return reports[0].identity if reports else None
