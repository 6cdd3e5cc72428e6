"""What a store of a released schema held is taken up: its cluster, keys and receipts stand, what was open is settled.
Two controllers and two nodes that serve by it are of an earlier version, and are upgraded under streams: first the
controllers, which find journal and snapshots as that version wrote them and hear its agents, then each agent, which
finds its store so. State is what it was, nothing that ran is started again, and what was promised is kept."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import attrs
import trio

from lunanexa_apps.controller.replay import Replay
from lunanexa_apps.installation import KNOWN_HEAD
from lunanexa_core.canonical import canonical_json, strict_json
from lunanexa_core.events import Liveness, LivenessChanged
from lunanexa_core.ids import NodeId, StartId
from lunanexa_core.journal import Row
from lunanexa_core.lifecycle.record import ReplicaRecord
from lunanexa_core.state import State
from lunanexa_core.state_digest import state_digest
from lunanexa_simulation.client import Ending
from lunanexa_simulation.faults import crash_agent, crash_controller
from lunanexa_simulation.journal import JournalState
from lunanexa_simulation.node_store import NodeStoreState
from lunanexa_simulation.older import RELEASED, older, older_rows, older_snapshot, released_rows
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import PAUSE_S, at_rest, calling, changes, served, until_listed
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(nodes=2, controllers=2)
STREAMS: Final = 3
KEPT: Final = {"idempotency-key": "a-key-of-long-ago", "x-lunanexa-retain-ms": "600000"}


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        for node in world.nodes:
            node.older = True
        await _taken_up(world, run.streams.stream("schema").choice(RELEASED))
        await world.start()
        await world.start_standbys()
        await world.deploy(replicas=2)
        await world.until("both replicas are routable", lambda: world.routable() == 2, within_ms=60_000)
        await served(world, "by the earlier version")
        body = world.prompt("before the upgrade")
        kept = await world.client.chat(body, headers=KEPT)
        world.check("an answer is kept", kept.ending is Ending.WHOLE, kept)
        await world.until("a snapshot is kept", lambda: bool(world.controller.snapshots()), within_ms=60_000)
        engines, heard = _engines(world), len(changes(world, LivenessChanged))
        async with world.streams(STREAMS, "as the controllers are upgraded", max_tokens=1_200) as streams:
            await world.dither("upgrade", 1_000)
            await _controllers_are_upgraded(world)
        cut = [answer for _, answer in streams if answer.ending is Ending.CUT]
        world.check("streams end with the controller that relayed them", len(cut) == STREAMS, streams)
        await world.until("both replicas are routable again", lambda: world.routable() == 2, within_ms=30_000)
        await until_listed(world, "after the upgrade")
        again = await world.client.chat(body, headers=KEPT)
        same = (again.text, again.workload, again.replayed) == (kept.text, kept.workload, True)
        world.check("what the earlier version kept is given again", same, again)
        async with calling(world, "while agents are upgraded"):
            for number in range(len(world.nodes)):
                await _agent_is_upgraded(world, number)
        await served(world, "by the new version")
        await at_rest(world, "after all")
        world.check("no engine was started again", _engines(world) == engines, _engines(world))
        told = changes(world, LivenessChanged)[heard:]
        world.check("no node was missed", not told, told)
        await world.stop()


async def _taken_up(world: World, schema: int) -> None:
    """By a controller that has no node of it; its operator takes leave of what is gone."""
    rows, head = released_rows(schema)
    world.trace(f"the journal holds {len(rows)} rows of schema {schema}")
    journal = world.controller.disk.state(JournalState)
    journal.rows[:], journal.head = rows, attrs.evolve(head, epoch=head.epoch + 1)  # An epoch that wrote nothing.
    left = Replay()
    for row in rows:
        left.feed(row)
    await world.start_controller()
    state = world.kernel.state
    world.check("it is the cluster that it was", state.cluster == left.state.cluster, state.cluster)
    world.check("who had a key has it", left.state.keys.items() <= state.keys.items(), state.keys)
    await world.until("what was open is settled", lambda: not state.open, within_ms=60_000)
    wanted = left.state.receipts.keys() | left.state.open.keys()
    world.check("each workload has its receipt", state.receipts.keys() == wanted, state.receipts)
    world.check("what had one has the same", left.state.receipts.items() <= state.receipts.items(), state.receipts)
    for node in left.state.nodes:
        await world.until(f"{node} is lost", partial(_is_lost, world, node), within_ms=30_000)
        await _operate(world, "POST", f"/admin/v1/nodes/{node}/revoke", {"reason": "gone"})
    for deployment in left.state.deployments:
        await _operate(world, "DELETE", f"/admin/v1/deployments/{deployment}")
    await world.until("nothing is left on who is gone", lambda: not state.assignments, within_ms=30_000)
    await world.controller.stop()


def _is_lost(world: World, node: NodeId) -> bool:
    return world.kernel.state.nodes[node].liveness is Liveness.LOST


async def _operate(world: World, method: str, target: str, body: object = None) -> None:
    status, answer = await world.operate(method, target, body)
    world.check("the operator is obeyed", status == 200, answer)


async def _controllers_are_upgraded(world: World) -> None:
    """Those that follow first, then the one that leads; the first new one finds what the earlier version wrote."""
    leader = world.controller
    for host in world.controllers:
        if host is not leader:
            await host.stop()
    before = leader.kernel.state
    crash_controller(world)
    journal = leader.disk.state(JournalState)
    rows, heads = older_rows(journal.rows)
    world.check("the earlier version wrote less", _bytes(rows) < _bytes(journal.rows))
    replay = Replay()
    for row in rows:
        replay.feed(row)
    world.check("its rows make the same state", _digest(replay.state) == _digest(before))
    journal.rows[:], journal.head = rows, attrs.evolve(heads[journal.head.sequence], epoch=journal.head.epoch)
    world.sight.begin_again()
    for host in world.controllers:
        files = host.snapshots()
        files.update({sequence: older_snapshot(data, heads[sequence]) for sequence, data in files.items()})
        host.folder.files.pop(KNOWN_HEAD, None)
    newest = _newest(world)
    await world.start_controller()
    await world.start_standbys()
    world.turn_clients()
    await world.until("snapshots of the new version follow", lambda: _newest(world) > newest, within_ms=60_000)


async def _agent_is_upgraded(world: World, number: int) -> None:
    node = world.nodes[number]
    await trio.sleep(PAUSE_S)  # A call that the agent before cut is over: it has one second attempt.
    crash_agent(world, number)
    replicas = node.disk.state(NodeStoreState).replicas
    for name, value in replicas.items():
        replicas[name] = canonical_json(older(ReplicaRecord, strict_json(value)))
        world.check("the earlier agent wrote less", len(replicas[name]) < len(value), value)
    node.older = False
    await world.dither(f"agent {number}", 1_000)
    await world.start_agent(number)
    await world.until("the new agent has a lease", lambda: (node.lease_left_ms() or 0) > 0, within_ms=30_000)
    both = "both replicas are routable with a new agent"
    await world.until(both, lambda: world.routable() == 2, within_ms=30_000)


def _digest(state: State) -> str:
    """But for hashes of rows, which are others."""
    return state_digest(attrs.evolve(state, places={}))


def _engines(world: World) -> frozenset[StartId]:
    return frozenset(start for node in world.nodes for _, start in node.running())


def _bytes(rows: Sequence[Row]) -> int:
    return sum(len(row.record) for row in rows)


def _newest(world: World) -> int:
    return max(sequence for host in world.controllers for sequence in (*host.snapshots(), 0))
