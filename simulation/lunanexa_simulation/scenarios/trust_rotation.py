"""Authority and signing key are exchanged under calls, with a node away: the rotation waits for it, nobody is cut off
at any moment, and in the end the old keys are gone."""

from typing import Any, Final

import trio

from lunanexa_core.identity.trust import TrustSet, TrustStage
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import at_rest, calling, served, until_listed
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(nodes=3, engine_arguments=("--ttft-ms", "32", "--itl-ms", "8"))
AWAY: Final = 2
AWAY_MS: Final = 20_000
STEP_MS: Final = 90_000
"""A node that was given a certificate just now waits a minute for the next."""


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        await world.start()
        await world.deploy(replicas=2)
        await until_listed(world, "at first")
        await world.until("both replicas are routable", lambda: world.routable() == 2, within_ms=STEP_MS)
        first = _trust(world)
        world.nodes[AWAY].crash()
        async with calling(world, "through the rotation"):
            await _waits_for_who_is_away(world)
            await world.start_agent(AWAY)
            await _until(world, TrustStage.TURNING)
            await _until(world, TrustStage.STABLE)
        _check_exchanged(world, first)
        await _another_leader(world)
        await served(world, "after all")
        await at_rest(world, "after all")
        await world.stop()


async def _waits_for_who_is_away(world: World) -> None:
    told = await _rotate(world)
    world.check("a rotation begins", told["stage"] == "spreading", told)
    again = await _rotate(world)
    world.check("and no other one meanwhile", again["version"] == told["version"], again)
    await trio.sleep(AWAY_MS / 1_000)
    status, told = await world.operate("GET", "/admin/v1/trust")
    waiting = [one["node"] for one in told["waiting"]]
    world.check("it waits for the node that is away", (status, told["stage"]) == (200, "spreading"), told)
    world.check("and for no other", waiting == [world.nodes[AWAY].name], waiting)


async def _until(world: World, stage: TrustStage) -> None:
    await world.until(f"the rotation is {stage.value}", lambda: _trust(world).stage is stage, within_ms=STEP_MS)


def _check_exchanged(world: World, first: TrustSet) -> None:
    trust, state = _trust(world), world.kernel.state
    world.check("another authority and key", trust.issuing != first.issuing and trust.signing != first.signing, trust)
    issuers = {node.certificates[-1].issuer for node in state.nodes.values()}
    world.check("all nodes have its certificates", issuers == {trust.issuing.fingerprint}, issuers)
    held = (list(world.fleet_keys.authorities()), list(world.fleet_keys.signers()))
    world.check("the old keys are gone", held == ([trust.issuing.fingerprint], [trust.signing.key_id]), held)
    for credentials in (world.controller.server, world.controller.gateway):
        world.check("the controller trusts no other", credentials.trusted == (trust.issuing.fingerprint,), credentials)


async def _another_leader(world: World) -> None:
    """It begins with the keys that there are, and agents that begin with what they have kept."""
    world.controller.crash()
    for node in world.nodes:
        node.crash()
    await world.start_controller()
    for number in range(len(world.nodes)):
        await world.start_agent(number)
    await world.until("all are heard", lambda: all(world.heard(node.name) for node in world.nodes), within_ms=STEP_MS)
    await world.until("both replicas are routable again", lambda: world.routable() == 2, within_ms=STEP_MS)
    world.check("nothing is rotated by that", _trust(world).stage is TrustStage.STABLE, _trust(world))


async def _rotate(world: World) -> Any:
    status, told = await world.operate("POST", "/admin/v1/trust/rotate")
    world.check("an operator may rotate", status == 200, told)
    return told


def _trust(world: World) -> TrustSet:
    trust = world.kernel.state.trust
    assert trust is not None
    return trust
