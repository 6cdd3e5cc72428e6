"""Nodes come in by tokens, though their agents die on the way; they have their certificates renewed by themselves at
half of their time; and a machine that slept through a week-end comes back by a challenge, without anybody's help."""

from typing import Final

import trio

from lunanexa_core.events import NodeCertified, NodeEnrolled
from lunanexa_core.identity.certificate import VALID_MS
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import at_rest, calling, changes, served, until_listed
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(nodes=2)
TRIES: Final = 4
BACK_MS: Final = 60_000
RENEWED_MS: Final = 90_000
"""An agent looks at its clock once in a minute."""
HALF_MS: Final = VALID_MS * 6 // 10
NAPS: Final = 3
"""Of a machine without an agent: two days, nearly."""


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        await world.start_controller()
        await _killed_while_it_enrols(world)
        await world.let_in(1)
        await world.start_agent(1)
        await world.deploy(replicas=2)
        await _until_both(world, "at first")
        await until_listed(world, "at first")
        await _at_half_of_its_time(world)
        await _a_week_end(world)
        await served(world, "after all")
        await at_rest(world, "after all")
        await world.stop()


async def _killed_while_it_enrols(world: World) -> None:
    """Whatever of it was done, the next agent ends it, by the same token."""
    node = world.nodes[0]
    await world.let_in(0)
    for number in range(TRIES):
        await world.start_agent(0)
        await world.dither(f"enrols ({number})", 40)
        node.crash()
    await world.start_agent(0)
    await world.until("the node is enrolled and heard", lambda: _heard(world, 0), within_ms=BACK_MS)
    await world.until("and needs its token no more", lambda: node.token is None, within_ms=BACK_MS)
    keys = {event.public_key for event in changes(world, NodeEnrolled)}
    world.check("by one key", keys == {node.signer.public_key}, keys)
    known = world.kernel.state.nodes[node.name]
    shown = node.own_credentials().certificate
    held = [one.serial for one in known.certificates]
    world.check("it shows what is known of it", shown is not None and shown.serial in held, (shown, held))


async def _at_half_of_its_time(world: World) -> None:
    before, shown = len(changes(world, NodeCertified)), _shown(world)
    _pass(world, HALF_MS)
    await _until_both(world, "after half a day")
    async with calling(world, "while certificates are renewed"):
        await world.until("all are renewed", lambda: not _shown(world) & shown, within_ms=RENEWED_MS)
    renewed = changes(world, NodeCertified)[before:]
    names = sorted(event.node for event in renewed)
    world.check("each node once", names == sorted(node.name for node in world.nodes), names)
    world.check("by the certificate before", not any(event.by_challenge for event in renewed), renewed)


async def _a_week_end(world: World) -> None:
    node, before = world.nodes[1], len(changes(world, NodeCertified))
    node.crash()
    for number in range(NAPS):
        _pass(world, HALF_MS)
        await trio.sleep(RENEWED_MS / 1_000)
        await world.until(f"the other one is heard ({number})", lambda: _heard(world, 0), within_ms=BACK_MS)
    await world.start_agent(1)
    await world.until("the machine that slept is back", lambda: _heard(world, 1), within_ms=BACK_MS)
    renewed = [event for event in changes(world, NodeCertified)[before:] if event.node == node.name]
    world.check("it answered a challenge, once", [event.by_challenge for event in renewed] == [True], renewed)
    await _until_both(world, "after the week-end")


def _pass(world: World, ms: int) -> None:
    """Time passes for all machines, in which nobody does anything."""
    for clock in (*world.clocks, *(node.clock for node in world.nodes)):
        clock.wake(ms)


def _heard(world: World, number: int) -> bool:
    return world.heard(world.nodes[number].name)


def _shown(world: World) -> set[str]:
    """Serials of what nodes and controller show."""
    credentials = (world.controller.server, world.controller.gateway, *(node.own_credentials() for node in world.nodes))
    return {one.certificate.serial for one in credentials if one.certificate is not None}


async def _until_both(world: World, when: str) -> None:
    await world.until(f"both replicas are routable {when}", lambda: world.routable() == 2, within_ms=BACK_MS)
