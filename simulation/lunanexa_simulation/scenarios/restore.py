"""Four nodes, and a controller whose store is set back to what it was before the last changes, with or without the file
in which it keeps how far it has seen it; a node may be away meanwhile. It notices, by itself or because nodes show it
documents that it does not know; it serves nothing and leaves everything as it runs; after the go the nodes obey again,
and nothing ran twice. A node that only says to have such a document stops nobody."""

from typing import Any, Final

import attrs
import trio

from lunanexa_apps.codec import decode, encode
from lunanexa_apps.installation import KNOWN_HEAD
from lunanexa_apps.node.control import ControlRefusal
from lunanexa_core.events import RecoveryBegan, StoreRebased
from lunanexa_core.ids import AssignmentId, StartId
from lunanexa_core.journal import Head, Row
from lunanexa_core.outcomes import Outcome
from lunanexa_core.recovery_reasons import RecoveryCause
from lunanexa_core.southbound.documents import DesiredState, DocumentSeen, SignedDocument
from lunanexa_simulation.client import Ending
from lunanexa_simulation.faults import crash_agent, crash_controller
from lunanexa_simulation.journal import JournalState
from lunanexa_simulation.node_host import NodeHost
from lunanexa_simulation.node_store import NodeStoreState
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.hostile import next_heartbeat, says, speaking_as
from lunanexa_simulation.scenarios.steps import at_rest, changes, listed, served, until_listed
from lunanexa_simulation.snapshots import SnapshotFiles
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(nodes=4)
LEFT_MS: Final = 3 * PLAN.policy.node_lease_ms
"""So long nobody says go."""
NOTICED_MS: Final = 5_000
STREAMS: Final = 2


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
        await _a_claim_alone(world)
        async with world.streams(STREAMS, "as the copy is made"):
            copy = _copied(world)
        await _what_is_lost(world)
        crash_controller(world)
        _set_back(world, copy)
        away = run.streams.stream("away").random() < 0.5
        if away:
            crash_agent(world, 0)
        await world.dither("controller start", 2_000)
        cause = _known_to(world)
        await world.start_controller()
        await world.until("it is noticed", lambda: world.kernel.state.recovery is not None, within_ms=NOTICED_MS)
        await _nothing_happens(world, cause)
        await _go(world)
        await until_listed(world, "after the go")
        if away:
            await world.start_agent(0)
        await world.until("three replicas as of the copy", lambda: _as_copied(world), within_ms=120_000)
        await world.until("and no other engine runs", lambda: len(_running(world)) == 3, within_ms=30_000)
        await world.until("every node follows", lambda: _follow(world, world.kernel.epoch), within_ms=30_000)
        await at_rest(world, "of all that was open then")
        await served(world, "after the go")
        await _late_change(world)
        world.check("one recovery was begun", len(changes(world, RecoveryBegan)) == 1)
        await world.stop()


async def _what_is_lost(world: World) -> None:
    """Another leader or two, and what they gave the nodes to do."""
    for _ in range(world.run.streams.stream("leaders").randint(0, 2)):
        crash_controller(world)
        await world.start_controller()
    await world.deploy(replicas=4, slots=world.plan.engine_slots + 1)
    await world.until("four newer replicas are routable", lambda: _newer(world, 4), within_ms=120_000)
    await served(world, "after the copy")


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


def _known_to(world: World) -> RecoveryCause:
    """Who can tell that the store was set back: its controller, or nodes alone."""
    if world.run.streams.stream("known").random() < 0.5:
        return RecoveryCause.ROWS_MISSING
    world.trace("and so is the rest of the controller's folder")
    del world.controller.folder.files[KNOWN_HEAD]
    world.controller.disk.state(SnapshotFiles).files.clear()
    return RecoveryCause.NODE_AHEAD


async def _a_claim_alone(world: World) -> None:
    """A node says by its own key that it follows what nobody gave it, and shows documents that the cluster did not
    sign for it, and then the one that it has."""
    node, told = world.nodes[0], next_heartbeat(world, world.nodes[0])
    own, others = _document(node), _document(world.nodes[1])
    desired = decode(DesiredState, own.payload)
    for epoch, generation in ((desired.epoch + 1, 0), (0, desired.generation + 1), (desired.epoch + 7, 1 << 10)):
        lie = attrs.evolve(told, epoch=max(told.epoch, epoch), generation=max(told.generation, generation))
        refused = await says(world, node, lie)
        world.check("a claim alone is refused", refused is not None and refused.wants_document, refused)
        payload = encode(attrs.evolve(desired, epoch=lie.epoch, generation=lie.generation))
        forged = node.signer.sign(payload)
        async with speaking_as(world, node) as channel:
            for document in (
                forged,
                attrs.evolve(forged, key_id=own.key_id),
                attrs.evolve(own, payload=payload),
                others,
            ):
                answer = await channel.show(document)
                seen = not isinstance(answer, ControlRefusal) or not answer.wants_document
                world.check("and so is a document that is not the cluster's to it", not seen, answer)
            answer = await channel.show(own)
            world.check("its own is seen", answer == DocumentSeen(epoch=desired.epoch, generation=desired.generation))
        refused = await says(world, node, lie)
        world.check("and makes no claim true", refused is not None and refused.wants_document, refused)
    world.check("no recovery is begun", world.kernel.state.recovery is None, world.kernel.state.recovery)
    await served(world, "in spite of a claim")


def _document(node: NodeHost) -> SignedDocument:
    """What it follows, as its disk has it."""
    return decode(SignedDocument, node.disk.state(NodeStoreState).facts["document"])


async def _nothing_happens(world: World, cause: RecoveryCause) -> None:
    """Reconciliation, janitor and nodes leave all as it is, for longer than any lease."""
    running = _running(world)
    reasons = world.kernel.state.recovery or ()
    causes = [reason.cause for reason in reasons]
    world.check("by who can tell", causes == [cause], reasons)
    heads = world.kernel.head.sequence
    await trio.sleep(LEFT_MS / 1_000)
    world.check("every engine runs as it did", _running(world) == running, _running(world))
    answer = await world.client.chat(world.prompt("while nobody said go"))
    world.check("nothing is served", answer.ending is Ending.REFUSED, answer)
    told = (answer.status, answer.error)
    world.check("which is told honestly", told == (503, Outcome.STARTING.value) and answer.retry_after_s is not None)
    status, refused = await world.ask_to_deploy(replicas=1, slots=1)
    world.check("nothing is changed", status == 503, refused)
    world.check("nothing is listed", not await listed(world))
    world.check("every node is heard", world.kernel.observed.nodes.keys() == {node.name for node in _up(world)})
    rows = [row.action for row in world.sight.rows[heads:]]
    world.check("nothing is written but what nodes report", set(rows) <= _REPORTED, rows)


_REPORTED: Final = {"replica.changed", "node.booted", "node.liveness_changed"}


async def _go(world: World) -> None:
    status, found = await world.operate("GET", "/admin/v1/recovery")
    world.check("the plan is shown", status == 200 and found["recovering"], found)
    plan: dict[str, Any] = found["plan"]
    kinds = {(step["kind"], step["node"] is None) for step in plan["steps"]}
    world.check("with the orphan that the store does not know", ("stop_orphan", False) in kinds, plan)
    silent = [step["node"] for step in plan["steps"] if step["kind"] == "mark_unreachable"]
    world.check("and with who is not heard", silent == [node.name for node in world.nodes if not node.up], plan)
    world.check("and nobody to wait for", not plan["waiting"], plan)
    status, refused = await world.operate("POST", "/admin/v1/recovery:rebase", {"plan": "0" * 64})
    world.check("another plan's go is refused", status == 409, refused)
    highest = max(node.accepted() or (0, 0) for node in _up(world))
    status, ended = await world.operate("POST", "/admin/v1/recovery:rebase", {"plan": plan["digest"]})
    world.check("the go is taken", status == 200, ended)
    world.check("in an epoch above every node's", ended["epoch"] > highest[0], (ended, highest))
    world.check("and it is an event", len(changes(world, StoreRebased)) == 1)
    await world.until("who is there follows in that epoch", lambda: _follow(world, ended["epoch"]), within_ms=30_000)


def _follow(world: World, epoch: int) -> bool:
    """Whether every agent that runs has a document of that epoch."""
    return all((node.accepted() or (0, 0))[0] == epoch for node in _up(world))


def _up(world: World) -> list[NodeHost]:
    return [node for node in world.nodes if node.up]


async def _late_change(world: World) -> None:
    """What is deployed from now on is followed as ever."""
    await world.deploy(replicas=4, slots=world.plan.engine_slots + 1)
    await world.until("four replicas again", lambda: _newer(world, 4), within_ms=120_000)
    await served(world, "after a change")
