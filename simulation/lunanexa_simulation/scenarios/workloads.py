"""Callers look at their own workloads and cancel them: waiting, running, streaming, ended, and after the controller
was killed; a cancellation frees everything and is told everywhere the same."""

from typing import Any, Final

import trio

from lunanexa_core.outcomes import Outcome
from lunanexa_core.workload import WorkloadState
from lunanexa_simulation.client import Answer, Ending
from lunanexa_simulation.faults import crash_controller
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import at_rest, receipts_of, served, until_listed, waiting
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(engine_slots=1, engine_arguments=("--ttft-ms", "2000", "--itl-ms", "100"))
WORKLOADS: Final = "/v1/workloads"
AGAIN_MS: Final = 10_000
"""A whole call takes 8.4 s: one that comes sooner than this found the slot free."""


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        await world.start()
        await world.deploy()
        await until_listed(world, "at first")
        for state in (WorkloadState.RUNNING, WorkloadState.STREAMING, WorkloadState.QUEUED):
            await _cancelled(world, state)
        await _seen_after_a_kill(world)
        await _anothers(world)
        await at_rest(world, "after all")
        await served(world, "after all")
        await world.stop()


async def _cancelled(world: World, state: WorkloadState) -> None:
    """A workload is seen in a state, cancelled in it, and its caller is told."""
    answers: list[Answer] = []

    async def ask(about: str) -> None:
        answers.append(await world.client.chat(world.prompt(about, stream=True)))

    async with trio.open_nursery() as nursery:
        if state is WorkloadState.QUEUED:
            nursery.start_soon(ask, "that holds the slot")
            await world.until("the slot is held", lambda: bool(world.kernel.observed.held), within_ms=1_000)
        nursery.start_soon(ask, f"to be cancelled while {state.value}")
        await world.until_told(f"one is {state.value}", lambda: _is(world, state), within_ms=30_000, every_ms=50)
        (seen, *_) = await _listed(world)
        name = seen["workload_id"]
        place = 0 if state is WorkloadState.QUEUED else None
        world.check("its place is told where it has one", seen["queue_position"] == place, seen)
        status, ended = await world.client.call("POST", f"{WORKLOADS}/{name}:cancel")
        world.check(f"cancelled while {state.value}", (status, ended["state"]) == (200, "Cancelled"), ended)
        receipts = receipts_of(world, name)
        world.check("with its receipt", [ended["receipt"]["sequence"]] == [world.kernel.state.places[name].sequence])
        world.check("which is the only one", len(receipts) == 1, receipts)
        world.check("it holds nothing any more", name not in world.kernel.observed.held and not waiting(world))
        for method, target in (("GET", f"{WORKLOADS}/{name}"), ("POST", f"{WORKLOADS}/{name}:cancel")):
            again = await world.client.call(method, target)
            world.check(f"{method} tells the same ever after", again == (200, ended), again)
    told = [answer for answer in answers if answer.error == Outcome.CANCELLED_BY_CALLER.value]
    world.check("its caller is told", len(told) == 1, answers)
    whole = [answer for answer in answers if answer.ending is Ending.WHOLE]
    world.check("who held the slot is served", len(whole) == (state is WorkloadState.QUEUED), answers)
    with trio.move_on_after(AGAIN_MS / 1_000):
        served_again = await world.client.chat(world.prompt(f"after {state.value}"))
        world.check("the slot serves the next one at once", served_again.ending is Ending.WHOLE, served_again)
        return
    world.check("the slot serves the next one in time", False, state)


async def _seen_after_a_kill(world: World) -> None:
    """What a killed controller left open is seen, and a cancellation ends it before a lease would."""
    async with world.streams(1, "until the controller dies"):
        ((seen, *_), epoch) = (await _listed(world), world.kernel.epoch)
        crash_controller(world)
    await world.start_controller()
    world.check("another leader", world.kernel.epoch > epoch)
    name = seen["workload_id"]
    _, found = await world.client.call("GET", f"{WORKLOADS}/{name}")
    world.check("it is still open", (found["state"], found["age_ms"]) == ("Admitted", None), found)
    _, ended = await world.client.call("POST", f"{WORKLOADS}/{name}:cancel")
    world.check("and is cancelled", ended["state"] == "Cancelled", ended)
    receipts = receipts_of(world, name)
    world.check("once", [receipt.settlement.detail for receipt in receipts] == ["gateway_lost"], receipts)
    await until_listed(world, "by the new controller")
    before = await _listed(world, limit=500)
    pages = await _pages(world, limit=2)
    world.check("pages hold what the whole list does", pages == before, len(pages))


async def _anothers(world: World) -> None:
    """Another key sees none of it."""
    _, stranger = await world.make_key("stranger")
    (one, *_) = await _listed(world)
    for method, target in (("GET", one["workload_id"]), ("POST", one["workload_id"] + ":cancel")):
        status, _ = await stranger.call(method, f"{WORKLOADS}/{target}")
        world.check("another's workload is not there", status == 404, status)
    world.check("nor in the list", (await stranger.call("GET", WORKLOADS))[1]["data"] == [])


async def _is(world: World, state: WorkloadState) -> bool:
    newest = (await _listed(world))[:1]
    return bool(newest) and newest[0]["state"] == state.value


async def _listed(world: World, *, limit: int = 10) -> list[dict[str, Any]]:
    _, page = await world.client.call("GET", f"{WORKLOADS}?limit={limit}")
    data: list[dict[str, Any]] = page["data"]
    return data


async def _pages(world: World, *, limit: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        _, page = await world.client.call("GET", f"{WORKLOADS}?limit={limit}{cursor}")
        found += page["data"]
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"
