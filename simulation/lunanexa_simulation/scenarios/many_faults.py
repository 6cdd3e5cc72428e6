"""Anything at any time. One to three controllers, one to four nodes, callers of every kind, and mishaps of every kind,
several at once, all as the seed has them; this is what a swarm runs.

First, under faults: whatever happens every answer is honest, and no invariant breaks. Then the faults end, and within
a bound everything that was asked is settled once, every replica is back, a rotation of trust is over, all controllers
have the same state, and nothing is held."""

from typing import Final

import attrs
import trio

from lunanexa_core.identity.trust import TrustStage
from lunanexa_core.ids import DeploymentId
from lunanexa_simulation.client import Client, Ending
from lunanexa_simulation.controller_host import PORT
from lunanexa_simulation.http_client import SimulatedHttpClient
from lunanexa_simulation.mishaps import KINDS, NEWEST, Hands
from lunanexa_simulation.mishaps.field import Field
from lunanexa_simulation.mishaps.links import CALLERS
from lunanexa_simulation.mishaps.plan import Drawn, MixedPlan, draw_plan
from lunanexa_simulation.run import Mishap, Run
from lunanexa_simulation.scenarios.mixed_traffic import TOKENS, Traffic
from lunanexa_simulation.scenarios.steps import at_rest, check_once_a_key, receipts_of, until_listed
from lunanexa_simulation.trace import virtual_ms
from lunanexa_simulation.world import DEPLOYMENT, World, open_world

LEADS_MS: Final = 30_000
SETTLED_MS: Final = 60_000
"""Whoever asks a machine that went silent gives up only then."""
BACK_MS: Final = 300_000
"""Engines that failed often wait before they are tried again."""


async def main(run: Run, drawing: int = NEWEST) -> None:
    """The scenario, as a drawing has it."""
    plan = draw_plan(run.streams.stream("plan"), drawing, run.manner.faults_ms)
    run.drawn = [Mishap(mishap.number, mishap.told) for mishap in plan.mishaps]
    async with open_world(run, plan.world) as world:
        await world.start()
        await world.start_standbys()
        await world.deploy(replicas=plan.replicas)
        await world.until("every replica is routable", lambda: world.routable() == plan.replicas, within_ms=60_000)
        world.trace(f"{len(plan.mishaps)} mishaps are drawn")
        traffic, clients = Traffic(world), await _clients(world, plan.callers)
        async with trio.open_nursery() as nursery:
            for number, client in enumerate(clients):
                nursery.start_soon(traffic.call, number, client)
            await _play(Field(world), plan)
            nursery.cancel_scope.cancel("enough was asked")
        await _recovered(world, plan)
        traffic.look_back()
        check_once_a_key(world)
        await world.stop()


async def _clients(world: World, count: int) -> list[Client]:
    """The first has a key with limits."""
    _, limited = await world.make_key("limited", concurrency=2, requests_per_minute=30)
    return [limited, *(_client(world, f"client {number}") for number in range(2, count + 1))]


def _client(world: World, name: str) -> Client:
    http = SimulatedHttpClient(world.network, CALLERS)
    return Client(
        http, host=world.controller.host, port=PORT, api_key=world.secrets.api_key, trace=world.run.trace, name=name
    )


@attrs.define
class _Busy:
    """What is in the hands of a mishap now."""

    hands: set[tuple[Hands, int]] = attrs.Factory(set)

    async def befall(self, field: Field, mishap: Drawn) -> None:
        kind, world = KINDS[mishap.kind], field.world
        held = (kind.hands, mishap.target)
        if held in self.hands:
            world.run.happened["mishap that came while another had the same in its hands"] += 1
            return
        self.hands.add(held)
        world.run.happened[f"mishap {kind.name}"] += 1
        world.trace(f"mishap {mishap.number}: {kind.name} begins")
        await kind.befall(field, mishap.target, world.run.streams.stream(f"mishap/{mishap.number}"))
        world.trace(f"mishap {mishap.number}: {kind.name} is over")
        self.hands.discard(held)


async def _play(field: Field, plan: MixedPlan) -> None:
    """Returns when the last mishap is over."""
    busy, began_ms, only = _Busy(), virtual_ms(), field.world.run.manner.only
    async with trio.open_nursery() as nursery:
        for mishap in plan.mishaps:
            if only is None or mishap.number in only:
                await trio.sleep((began_ms + mishap.at_ms - virtual_ms()) / 1_000)
                nursery.start_soon(busy.befall, field, mishap)
        await trio.sleep((began_ms + plan.faults_ms - virtual_ms()) / 1_000)


async def _recovered(world: World, plan: MixedPlan) -> None:
    world.trace("no more mishaps")
    leads = [host for host in world.controllers if host.up]
    world.check("every controller runs", len(leads) == len(world.controllers))
    await world.until("somebody leads", lambda: world.controller.kernel.leading, within_ms=LEADS_MS)
    world.turn_clients()
    await world.until("everything is settled", lambda: not world.kernel.state.open, within_ms=SETTLED_MS)
    await world.until_told("the deployment is accepted", lambda: _deployed(world, plan), within_ms=LEADS_MS)
    await world.until("every replica is routable again", lambda: _as_asked(world), within_ms=BACK_MS)
    await world.until("nothing is left over", lambda: not world.kernel.state.leaving, within_ms=BACK_MS)
    await world.until("a rotation of trust is over", lambda: _stable(world), within_ms=BACK_MS)
    await until_listed(world, "after all")
    await _serves(world)
    await at_rest(world, "after all")
    await world.until("all controllers have the same state", lambda: _same(world), within_ms=LEADS_MS)


async def _deployed(world: World, plan: MixedPlan) -> bool:
    """One that another took the lead from says so when it is asked."""
    world.turn_clients()
    status, answer = await world.ask_to_deploy(replicas=plan.replicas, slots=plan.world.engine_slots)
    world.check("an operator is obeyed, or told to come again", status in (200, 503), answer)
    return status == 200


async def _serves(world: World) -> None:
    """Whole, true and booked."""
    for stream in (False, True):
        body = world.prompt("after all", stream=stream, max_tokens=TOKENS)
        answer = await world.client.chat(body)
        world.check("served after all", answer.ending is Ending.WHOLE, answer)
        world.check_answer("the answer after all is the engine's", body, answer)
        world.check("and has its receipt", len(receipts_of(world, answer.workload)) == 1, answer)


def _as_asked(world: World) -> bool:
    """Each replica is of what was asked for last: others serve until then, and are replaced."""
    state = world.kernel.state
    asked = state.deployments[DeploymentId(DEPLOYMENT)]
    current = [one for one in state.assignments.values() if one.generation == asked.runs]
    return len(current) == len(state.assignments) == asked.spec.replicas == world.routable()


def _stable(world: World) -> bool:
    trust = world.kernel.state.trust
    return trust is not None and trust.stage is TrustStage.STABLE


def _same(world: World) -> bool:
    states = [host.kernel.state for host in world.controllers]
    return all(state == world.kernel.state for state in states)
