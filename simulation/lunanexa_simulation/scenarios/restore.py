"""Four nodes, and a controller whose store is set back to what it was before the last changes. It notices, serves
nothing and leaves everything as it runs; after the go the nodes obey again, and nothing ran twice."""

from typing import Any, Final

import attrs
import trio

from lunanexa_core.events import RecoveryBegan, StoreRebased
from lunanexa_core.ids import AssignmentId, StartId
from lunanexa_core.journal import Head, Row
from lunanexa_core.outcomes import Outcome
from lunanexa_core.recovery_reasons import RecoveryCause
from lunanexa_simulation.client import Ending
from lunanexa_simulation.faults import crash_controller
from lunanexa_simulation.journal import JournalState
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import changes, served, until_listed
from lunanexa_simulation.world import World, WorldPlan, open_world

PLAN: Final = WorldPlan(nodes=4)
LEFT_MS: Final = 3 * PLAN.policy.node_lease_ms
"""So long nobody says go."""


@attrs.frozen
class Copy:
    """What the store was."""

    rows: tuple[Row, ...]
    head: Head


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        await world.start()
        await world.deploy(replicas=3)
        await world.until("three replicas are routable", lambda: world.routable() == 3, within_ms=60_000)
        await served(world, "before the copy")
        copy = _copied(world)
        await world.deploy(replicas=4, slots=world.plan.engine_slots + 1)
        await world.until("four newer replicas are routable", lambda: _newer(world, 4), within_ms=120_000)
        await served(world, "after the copy")
        crash_controller(world)
        _set_back(world, copy)
        await world.dither("controller start", 2_000)
        await world.start_controller()
        await _nothing_happens(world)
        await _go(world)
        await until_listed(world, "after the go")
        await world.until("three replicas as of the copy", lambda: _as_copied(world), within_ms=120_000)
        running = [one for node in world.nodes for one in node.running()]
        world.check("and no other engine runs", len(running) == 3, running)
        await served(world, "after the go")
        await _late_change(world)
        world.check("one recovery was begun", len(changes(world, RecoveryBegan)) == 1)
        await world.stop()


def _copied(world: World) -> Copy:
    journal = world.controller.disk.state(JournalState)
    return Copy(tuple(journal.rows), journal.head)


def _set_back(world: World, copy: Copy) -> None:
    """The disk holds what it held then; who looks on begins anew with it."""
    journal = world.controller.disk.state(JournalState)
    world.trace(f"the store is set back from sequence {journal.head.sequence} to {copy.head.sequence}")
    journal.rows[:] = copy.rows
    journal.head = copy.head
    world.sight.begin_again()


def _newer(world: World, replicas: int) -> bool:
    slots = [report.slots for report in world.kernel.state.replicas.values()]
    return world.routable() == replicas and set(slots) == {world.plan.engine_slots + 1}


def _as_copied(world: World) -> bool:
    slots = [report.slots for report in world.kernel.state.replicas.values()]
    return world.routable() == 3 and slots == [world.plan.engine_slots] * 3


def _running(world: World) -> set[tuple[AssignmentId, StartId]]:
    return {one for node in world.nodes for one in node.running()}


async def _nothing_happens(world: World) -> None:
    """Reconciliation, janitor and nodes leave all as it is, for longer than any lease."""
    running = _running(world)
    reasons = world.kernel.state.recovery or ()
    causes = [reason.cause for reason in reasons]
    world.check("it is noticed at once", causes == [RecoveryCause.ROWS_MISSING], reasons)
    heads = world.kernel.head.sequence
    await trio.sleep(LEFT_MS / 1_000)
    world.check("every engine runs as it did", _running(world) == running, _running(world))
    answer = await world.client.chat(world.prompt("while nobody said go"))
    world.check("nothing is served", answer.ending is Ending.REFUSED, answer)
    told = (answer.status, answer.error)
    world.check("which is told honestly", told == (503, Outcome.STARTING.value) and answer.retry_after_s is not None)
    status, refused = await world.ask_to_deploy(replicas=1, slots=1)
    world.check("nothing is changed", status == 503, refused)
    world.check("every node is heard", world.kernel.observed.nodes.keys() == {node.name for node in world.nodes})
    rows = [row.action for row in world.sight.rows[heads:]]
    world.check("nothing is written but what nodes report", set(rows) <= _REPORTED, rows)


_REPORTED: Final = {"replica.changed", "node.booted", "node.liveness_changed"}


async def _go(world: World) -> None:
    status, found = await world.operate("GET", "/admin/v1/recovery")
    world.check("the plan is shown", status == 200 and found["recovering"], found)
    plan: dict[str, Any] = found["plan"]
    kinds = {(step["kind"], step["node"] is None) for step in plan["steps"]}
    world.check("with the orphan that the store does not know", ("stop_orphan", False) in kinds, plan)
    world.check("and nobody to wait for", not plan["waiting"], plan)
    status, refused = await world.operate("POST", "/admin/v1/recovery:rebase", {"plan": "0" * 64})
    world.check("another plan's go is refused", status == 409, refused)
    highest = max(node.accepted() or (0, 0) for node in world.nodes)
    status, ended = await world.operate("POST", "/admin/v1/recovery:rebase", {"plan": plan["digest"]})
    world.check("the go is taken", status == 200, ended)
    world.check("in an epoch above every node's", ended["epoch"] > highest[0], (ended, highest))
    world.check("and it is an event", len(changes(world, StoreRebased)) == 1)
    await world.until(
        "every node follows a document of that epoch",
        lambda: all((node.accepted() or (0, 0))[0] == ended["epoch"] for node in world.nodes),
        within_ms=30_000,
    )


async def _late_change(world: World) -> None:
    """What is deployed from now on is followed as ever."""
    await world.deploy(replicas=4, slots=world.plan.engine_slots + 1)
    await world.until("four replicas again", lambda: _newer(world, 4), within_ms=120_000)
    await served(world, "after a change")
