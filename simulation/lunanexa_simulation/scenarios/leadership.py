"""Three controllers on one journal, and nodes that were told of the first alone. The leader is restarted, dies, is cut
off from the journal, and stops; each time another leads within the lease, the nodes find it and none is suspected, and
what the old one had admitted has one receipt."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import trio

from lunanexa_core.events import LivenessChanged
from lunanexa_core.policy import Policy
from lunanexa_core.southbound.controllers import controller_url, controller_urls
from lunanexa_core.workload import WorkloadState
from lunanexa_simulation.client import Answer, Ending
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.controller_host import ControllerHost
from lunanexa_simulation.faults import crash_controller, cut_from_journal, run_clock
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import at_rest, changes, receipts_of, served, until_listed
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

STREAMS: Final = 3
TAKEOVER_MS: Final = Policy().lease_ms + 1_500
"""The lease, one look at the journal, and what replaying the rest takes."""
_TEN_PERCENT_PPM: Final = 100_000

Answers = Sequence[tuple[Mapping[str, Any], Answer]]


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, WorldPlan(nodes=2, controllers=3, controllers_told=1)) as world:
        await world.start()
        await world.start_standbys()
        await world.deploy(replicas=2)
        await world.until("both replicas are routable", lambda: world.routable() == 2, within_ms=60_000)
        await served(world, "by the first leader")
        heard = len(changes(world, LivenessChanged))
        await _refused_by_followers(world)
        await _leader_is_restarted(world)
        await _leader_dies(world)
        await _leader_is_cut_off(world)
        await _leader_stops(world)
        told = changes(world, LivenessChanged)[heard:]
        world.check("a new leader gives every node its time anew", not told, told)
        await world.stop()


async def _refused_by_followers(world: World) -> None:
    leader = world.controller
    for host in [host for host in world.controllers if host is not leader]:
        world.client.turn_to(host.host)
        answer = await world.client.chat(world.prompt("asked of a follower"))
        world.check("a follower refuses with not_leader", (answer.status, answer.error) == (503, "not_leader"), answer)
        world.check("and says when to come again", answer.retry_after_s is not None, answer)
        status, head = await world.operate("GET", "/admin/v1/journal/head")
        world.check("a follower shows the journal", status == 200, head)
        status, refused = await world.operate("GET", "/admin/v1/deployments")
        world.check("and nothing that only a leader knows", status == 503, refused)
    world.turn_clients()


async def _leader_is_restarted(world: World) -> None:
    """The nodes know of nobody else: it sends them on, and then their documents tell of both."""
    old, engines = world.controller, _engines(world)
    await old.stop()
    await world.until("another leads meanwhile", lambda: _leads_instead(world, old), within_ms=1_000)
    await old.start()
    world.trace(f"{old.host} follows")
    world.turn_clients()
    await _served_on(world, engines, "after a restart")
    leader = world.controller
    known = [controller_url(host.node_address) for host in (leader, old)]
    world.check(
        "documents tell of both, the leader first",
        list(controller_urls(leader.kernel.state)) == known,
        leader.kernel.state.controllers,
    )


async def _leader_dies(world: World) -> None:
    engines = _engines(world)
    async with world.streams(STREAMS, "until the leader dies") as streams:
        await world.dither("leader kill", 500)
        old = world.controller
        crash_controller(world)
        await _another_leads(world, old, "after a death")
    world.check("their connections break", all(answer.ending is Ending.CUT for _, answer in streams), streams)
    await _served_on(world, engines, "after a death")
    _settled_once(world, streams)
    await old.start()
    world.trace(f"{old.host} follows")


async def _leader_is_cut_off(world: World) -> None:
    """Its clock runs slow by a tenth, the others' fast: it must have stopped before they begin all the same."""
    old, engines = world.controller, _engines(world)
    for host, clock in zip(world.controllers, world.clocks, strict=True):
        run_clock(world, host.host, clock, -_TEN_PERCENT_PPM if host is old else 0)
    async with world.streams(STREAMS, "while the leader is cut off", max_tokens=1_200) as streams:
        cut_from_journal(world, old)
        refused = await world.client.chat(world.prompt("asked of a leader without its journal"))
        honest = (503, "store_unavailable")
        world.check("nothing is admitted without the journal", (refused.status, refused.error) == honest, refused)
        await _another_leads(world, old, "after a cut")
        world.check("the old one goes on with what it relays", all(host.up for host in world.controllers))
        cut_from_journal(world, old, cut=False)
        await world.until("the old one follows", lambda: not old.kernel.leading, within_ms=10_000)
    frames = [answer.error for _, answer in streams if answer.ending is Ending.ERROR_FRAME]
    world.check("its streams end and say why", frames == ["not_leader"] * STREAMS, streams)
    _normal_clocks(world, world.clocks)
    await _served_on(world, engines, "after a cut")
    _settled_once(world, streams)
    leader = world.controller
    await world.until("it has what the leader has", lambda: old.kernel.head == leader.kernel.head, within_ms=10_000)
    world.check("and the same state", old.kernel.state == leader.kernel.state)


async def _leader_stops(world: World) -> None:
    old, engines = world.controller, _engines(world)
    stopped_s = trio.current_time()
    await old.stop()
    await world.until("another leads after a stop", lambda: _leads_instead(world, old), within_ms=1_000)
    world.trace(f"took over in {round((trio.current_time() - stopped_s) * 1_000)} ms")
    world.turn_clients()
    await _served_on(world, engines, "after a stop")


async def _another_leads(world: World, old: ControllerHost, when: str) -> None:
    await world.until(f"another leads {when}", lambda: _leads_instead(world, old), within_ms=TAKEOVER_MS)
    world.turn_clients()


async def _served_on(world: World, engines: frozenset[str], when: str) -> None:
    await world.until(f"both replicas are routable {when}", lambda: world.routable() == 2, within_ms=30_000)
    settled_ms = world.kernel.policy.session_lease_ms + 5_000
    await world.until(
        f"what the old leader left is settled {when}", lambda: not world.kernel.state.open, within_ms=settled_ms
    )
    await until_listed(world, when)
    await served(world, when)
    world.check(f"the engines are those of before, {when}", _engines(world) == engines, _engines(world))
    await at_rest(world, when)


def _settled_once(world: World, streams: Answers) -> None:
    for _, answer in streams:
        receipts = receipts_of(world, answer.workload)
        states = [receipt.state for receipt in receipts]
        world.check("what the old leader had admitted is settled once", states == [WorkloadState.FAILED], states)


def _leads_instead(world: World, old: ControllerHost) -> bool:
    leader = world.controller
    return leader is not old and leader.up and leader.kernel.leading


def _engines(world: World) -> frozenset[str]:
    return frozenset(start for node in world.nodes for _, start in node.running())


def _normal_clocks(world: World, clocks: Sequence[SimulatedClock]) -> None:
    for host, clock in zip(world.controllers, clocks, strict=True):
        run_clock(world, host.host, clock, 0)
