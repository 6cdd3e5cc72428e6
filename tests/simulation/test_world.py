"""The world itself: what its switches do, apart from any scenario."""

from collections.abc import Awaitable, Callable

import pytest
import structlog
import trio

from lunanexa_apps.engine.settings import EngineSettings
from lunanexa_apps.node.settings import HEARTBEAT_MS
from lunanexa_simulation.client import Answer, Ending, Oracle
from lunanexa_simulation.engine_program import MODEL
from lunanexa_simulation.faults import (
    Way,
    crash_agent,
    crash_controller,
    join,
    lose_controller,
    part,
    reboot_node,
)
from lunanexa_simulation.giving_up import GIVE_UP_S
from lunanexa_simulation.processes import SimulatedProcesses
from lunanexa_simulation.run import Run, RunResult, run_simulated
from lunanexa_simulation.verdicts import Verdict
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan


def in_world(body: Callable[[World], Awaitable[None]], plan: WorldPlan | None = None) -> RunResult:
    async def main(run: Run) -> None:
        async with open_world(run, plan) as world:
            await body(world)

    return run_simulated(main, 1, horizon_ms=600_000)


def held(result: RunResult) -> None:
    assert result.verdict is Verdict.HELD, (result.problem, result.detail, *result.tail)


def test_four_nodes_enrol() -> None:
    async def body(world: World) -> None:
        await world.start()
        assert len(world.kernel.state.nodes) == 4

    held(in_world(body, WorldPlan(nodes=4)))


@pytest.mark.thorough
def test_checkers_see_the_fences_and_processes_of_nodes() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.deploy(replicas=2)
        await world.until("both serve", lambda: world.routable() == 2, within_ms=60_000)
        reports = world.kernel.state.replicas
        running = [pair for node in world.nodes for pair in node.running()]
        assert sorted(running) == sorted((name, report.start) for name, report in reports.items())
        generations = {node.node: node.generation for node in world.kernel.state.nodes.values()}
        assert {node.name: node.accepted() for node in world.nodes} == {
            name: (1, generation) for name, generation in generations.items()
        }

    held(in_world(body, WorldPlan(nodes=2)))


def test_a_killed_controller_writes_nothing_more_and_its_rows_stay() -> None:
    async def body(world: World) -> None:
        await world.start()
        rows = len(world.controller.durable().rows)
        crash_controller(world)
        await trio.sleep(30)
        assert len(world.controller.durable().rows) == rows
        assert (await world.client.chat(world.prompt("hello"))).ending is Ending.UNREACHABLE
        await world.start_controller()
        assert len(world.controller.durable().rows) > rows

    held(in_world(body))


def test_a_killed_agent_says_nothing_more() -> None:
    async def body(world: World) -> None:
        await world.start()
        node = world.nodes[0].name
        sequence = world.kernel.observed.nodes[node].sequence
        crash_agent(world)
        await trio.sleep(30)
        assert world.kernel.observed.nodes[node].sequence == sequence

    held(in_world(body))


def test_a_reboot_takes_the_processes_and_the_monotonic_clock() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.deploy()
        await world.until("it serves", lambda: world.routable() == 1, within_ms=60_000)
        node, before = world.nodes[0], world.nodes[0].clock.now()
        accepted, (start,) = node.accepted(), node.machine.intents
        reboot_node(world)
        after = node.clock.now()
        assert not node.up
        assert not node.machine.living()
        assert not node.machine.listeners
        assert (after.mono_ms, after.wall_ms) == (0, before.wall_ms)
        assert node.accepted() == accepted
        stranger = node.machine.reuse_pid(start)
        assert stranger.identity.boot == node.machine.boot
        assert (node.engines(), node.running()) == ([], [])
        assert SimulatedProcesses(node.machine).adopt(start) is None

    held(in_world(body))


async def when_cut(world: World, fault: Callable[[], None]) -> float:
    """How many seconds after ``fault`` a client learns that its stream has ended."""
    async with world.streams(1, "until it is cut", max_tokens=4_000) as streams:
        fault()
        began_s = trio.current_time()
    (_, answer), *_ = streams
    assert answer.ending in (Ending.CUT, Ending.ERROR_FRAME), answer
    return trio.current_time() - began_s


def test_nobody_hears_of_a_machine_that_loses_power() -> None:
    async def agent_again(world: World) -> None:
        await world.start_agent()
        node = world.nodes[0]
        ready = "it serves, and has a lease"
        await world.until(ready, lambda: world.routable() == 1 and (node.lease_left_ms() or 0) > 0, within_ms=60_000)

    async def body(world: World) -> None:
        await world.start()
        await world.deploy()
        await world.until("it serves", lambda: world.routable() == 1, within_ms=60_000)
        lease_s = world.kernel.policy.node_lease_ms / 1_000
        since_heartbeat_s = HEARTBEAT_MS / 1_000
        # The controller ends what it has open there when the lease of the last heartbeat is over, not the network.
        assert lease_s - since_heartbeat_s <= await when_cut(world, lambda: reboot_node(world)) < lease_s + 1
        await agent_again(world)
        assert await when_cut(world, lambda: crash_agent(world)) < 1, "of a process that dies everybody hears"
        await agent_again(world)
        leader = world.controller
        assert GIVE_UP_S <= await when_cut(world, lambda: lose_controller(world, leader)) < GIVE_UP_S + 1
        await world.start_controller()

    held(in_world(body))


@pytest.mark.parametrize("way", list(Way))
def test_what_passes_between_agent_and_controller_is_cut_each_way(way: Way) -> None:
    async def body(world: World) -> None:
        await world.start()
        await trio.sleep(1)  # The first heartbeat is answered.
        part(world, 0, way)
        heard = world.kernel.observed.nodes[world.nodes[0].name].sequence
        await trio.sleep(4)
        # An agent whose answer is lost waits for it before it says more.
        since = world.kernel.observed.nodes[world.nodes[0].name].sequence - heard
        assert since == (1 if way is Way.TO_NODE else 0), since
        join(world, 0)
        await trio.sleep(12)
        assert world.kernel.observed.nodes[world.nodes[0].name].sequence > heard + 1

    held(in_world(body))


def test_a_promise_that_is_not_kept_in_time_breaks_liveness() -> None:
    async def body(world: World) -> None:
        await world.until("pigs fly", lambda: False, within_ms=5_000)

    result = in_world(body)
    assert (result.verdict, result.problem) == (Verdict.LIVENESS_BROKEN, "pigs fly: not within 5000 virtual ms")
    assert [(promise.name, promise.held) for promise in result.promises] == [("pigs fly", False)]


def test_a_store_that_loses_what_it_acknowledged_is_seen() -> None:
    async def body(world: World) -> None:
        await world.start()
        world.controller.durable().rows.pop()
        await world.deploy()

    result = in_world(body)
    assert result.verdict is Verdict.SAFETY_BROKEN
    assert result.problem is not None
    assert result.problem.startswith("replay_equals_live: the journal is damaged")


def test_an_error_of_a_service_is_a_crash() -> None:
    async def body(world: World) -> None:
        await world.start()
        world.controller.disk.faults.corrupt = True
        await world.client.call("PUT", "/admin/v1/deployments/x", world.secrets.operator_token, {})
        await world.deploy()

    result = in_world(body)
    assert (result.verdict, result.problem) == (Verdict.CRASHED, "PortFault: the simulated disk is corrupt")


def test_a_planted_secret_that_a_service_logs_is_found() -> None:
    async def body(world: World) -> None:
        await world.start()
        structlog.get_logger().info("leak", header=f"Bearer {world.secrets.operator_token}")
        await trio.sleep(1)

    result = in_world(body)
    assert (result.verdict, result.problem) == (
        Verdict.SAFETY_BROKEN,
        "no_secret_shown: the operator token stands in a log line",
    )


def test_the_oracle_knows_a_wrong_answer() -> None:
    oracle = Oracle(EngineSettings(names=("reference",)), MODEL)
    body = {"model": "any", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    text = oracle.expect(body)
    assert oracle.fault(body, Answer(ending=Ending.WHOLE, text=text)) is None
    assert oracle.fault(body, Answer(ending=Ending.CUT, text=text[:5])) is None
    assert oracle.fault(body, Answer(ending=Ending.WHOLE, text=text[:5])) is not None
    assert oracle.fault(body, Answer(ending=Ending.CUT, text=text[1:5])) is not None
