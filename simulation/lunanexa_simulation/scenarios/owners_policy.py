"""Owners of three machines say what may run there, and at no instant anything starts against their word. What one
forbids goes to another machine, also where it ran already; it ends without a controller too, and where nobody takes it
callers are told so. What would be too much stops nothing: it goes where there is room, and waits where there is none. A
word that is taken back counts no more."""

from collections.abc import Sequence
from typing import Any, Final

import attrs

from lunanexa_core.ids import AssignmentId, DeploymentId, NodeId, StartId
from lunanexa_core.outcomes import Outcome
from lunanexa_core.southbound.heartbeat import ReplicaReport
from lunanexa_simulation.client import Ending
from lunanexa_simulation.engine_program import BINARY
from lunanexa_simulation.faults import crash_agent, crash_controller
from lunanexa_simulation.node_host import NodeHost
from lunanexa_simulation.process import SimulatedProcess
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import (
    at_rest,
    calling,
    listed,
    receipts_of,
    refused_calls,
    served,
    until_listed,
)
from lunanexa_simulation.world import DEPLOYMENT, MODEL_ALIAS, SERVED_NAME, World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(nodes=3, doors=False, engine_arguments=("--ttft-ms", "32", "--itl-ms", "64"))
"""A data listener would go with its agent, and the streams through it."""
STREAMS: Final = 4
LONG: Final = 256
"""Tokens of a stream that takes longer than an engine has to stop when it is not drained."""
ENGINE_MIB: Final = 40 * 1024
OTHER: Final = "other"
BACK_MS: Final = 60_000


@attrs.frozen
class Word:
    """An owner's policy, and what it means for engines."""

    text: str = ""
    refusal: str | None = None
    """What the operator reads of what it refuses."""
    argument: str | None = None
    """With which nothing may run."""
    most: int | None = None
    """How many engines there may be."""

    def forbids(self, engine: SimulatedProcess) -> bool:
        return self.argument in engine.argv


ALL: Final = Word()
NOTHING: Final = Word("programs = []", "policy_program", most=0)
NOT_SO: Final = Word('arguments_refused = ["--itl"]', "policy_argument", argument="--itl-ms")
ONE: Final = Word("replicas = 1", "policy_replicas", most=1)
ROOM_FOR_ONE: Final = Word(f"memory_mib = {ENGINE_MIB + 1}", "policy_memory", most=1)


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        await world.start()
        owners = Owners(world)
        with world.watched("nothing starts against an owner's word", owners.trespass):
            await _elsewhere(world, owners)
            await _no_more(world, owners)
            await _without_a_controller(world, owners)
            await _by_nobody(world, owners)
            await _a_change(world, owners)
            await _too_much(world, owners)
            await _full(world)
        await served(world, "after all")
        await at_rest(world, "after all")
        await world.stop()


class Owners:
    """What each says, and what ran when its agent heard it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._words = [ALL] * len(world.nodes)
        self._ran: list[set[StartId]] = [set() for _ in world.nodes]

    async def say(self, number: int, word: Word) -> None:
        """One writes it into the file and starts the agent anew, as it says itself that one must."""
        node = self._world.nodes[number]
        crash_agent(self._world, number)
        await self._world.dither("agent start", 1_000)
        node.policy_file, self._words[number], self._ran[number] = word.text, word, _starts(node)
        self._world.trace(f"{node.name}: its owner says {word.text!r}")
        await self._world.start_agent(number)

    def trespass(self) -> str | None:
        """What started since an owner's word, and against it."""
        for node, word, ran in zip(self._world.nodes, self._words, self._ran, strict=True):
            began = [engine for engine in node.engines() if engine.start not in ran]
            if any(map(word.forbids, began)):
                return f"{node.name} starts {began} against {word.text!r}"
            if began and word.most is not None and len(_starts(node)) > word.most:
                return f"{node.name} runs {_starts(node)} against {word.text!r}"
        return None


async def _elsewhere(world: World, owners: Owners) -> None:
    """Refused from the beginning: where nothing may run nothing ever did."""
    await owners.say(0, NOTHING)
    await world.deploy(replicas=2)
    await _until_on(world, {1, 2}, "where it may run")
    await _until_refused(world, {0: NOTHING})
    await served(world, "where it may run")
    await owners.say(0, ALL)


async def _no_more(world: World, owners: Owners) -> None:
    """Refused when it runs: it ends what it has in progress, and moves; every call is served meanwhile."""
    await until_listed(world, "by two")
    async with (
        calling(world, "while it moves"),
        world.streams(STREAMS, "while it moves", max_tokens=LONG) as streams,
    ):
        await owners.say(1, NOT_SO)
        await _until_on(world, {0, 2}, "when it has moved")
    world.check("and no stream is cut", {answer.ending for _, answer in streams} == {Ending.WHOLE}, streams)
    served_by = {receipts_of(world, answer.workload)[0].settlement.attempts[0].start for _, answer in streams}
    world.check("some were where it may not run", len(served_by) == 2, served_by)
    world.check("and what ran is gone", not world.nodes[1].engines(), world.nodes[1].running())
    await _until_refused(world, {1: NOT_SO})


async def _without_a_controller(world: World, owners: Owners) -> None:
    """The word needs nobody's leave. There is no third machine for what ends: its place waits for one."""
    goes_on = _starts(world.nodes[0])
    crash_controller(world)
    await owners.say(2, NOT_SO)
    await world.until("it ends by itself", lambda: not world.nodes[2].engines(), within_ms=BACK_MS)
    await world.start_controller()
    await _until_on(world, {0}, "where it still may run")
    await _until_refused(world, {1: NOT_SO, 2: NOT_SO})
    world.check("and it was never stopped", _starts(world.nodes[0]) == goes_on, world.nodes[0].running())
    await until_listed(world, "by one")
    await served(world, "by one")
    await owners.say(1, ALL)
    await _until_on(world, {0, 1}, "when a word is taken back")


async def _by_nobody(world: World, owners: Owners) -> None:
    """Refused by all, until the operator wants something else."""
    for number in (0, 1):
        await owners.say(number, NOT_SO)
    await world.until("nothing serves", lambda: not world.routable(), within_ms=BACK_MS)
    async with refused_calls(world, "where nobody runs it"):
        await world.dither("nobody", 8_000)
    world.check("nor is it listed", not await listed(world))
    world.check("and nothing runs", not any(map(_starts, world.nodes)))
    await _until_refused(world, {0: NOT_SO, 1: NOT_SO, 2: NOT_SO})
    refused = await world.client.chat(world.prompt("where nobody runs it"))
    world.check("and callers that no node can", refused.error == Outcome.NO_PLACEMENT.value, refused)
    await _deploy(world, DEPLOYMENT, MODEL_ALIAS, 3)
    await _until_on(world, {0, 1, 2}, "what nobody refuses")
    await _until_refused(world, {})


async def _a_change(world: World, owners: Owners) -> None:
    """What all refuse of a newer generation leaves the older one, asked for nothing more, until it may be replaced."""
    former = [_starts(node) for node in world.nodes]
    await world.deploy(replicas=3)
    await _until_refused(world, {0: NOT_SO, 1: NOT_SO, 2: NOT_SO})
    await world.dither("a change", 8_000)
    world.check("what ran is not stopped", former == [_starts(node) for node in world.nodes])
    await owners.say(0, ALL)
    await _until_on(world, {0}, "where it may be replaced")
    await served(world, "where it may be replaced")
    world.check("nor is the rest for that", former[1:] == [_starts(node) for node in world.nodes[1:]])
    await _deploy(world, DEPLOYMENT, MODEL_ALIAS, 3)
    await _until_on(world, {0, 1, 2}, "what nobody refuses, again")


async def _too_much(world: World, owners: Owners) -> None:
    """What has no room beside what was there goes to the machine that has some, and leaves the others' engines be."""
    for node in world.nodes:
        node.machine.faults.ignore_terminate = True
    former = _starts(world.nodes[0]) | _starts(world.nodes[1])
    await owners.say(0, ONE)
    await owners.say(1, ROOM_FOR_ONE)
    await _deploy(world, OTHER, OTHER, 1)
    await _until_on(world, {2}, "where it has room", OTHER)
    await _until_refused(world, {0: ONE, 1: ROOM_FOR_ONE}, OTHER)
    answer = await world.client.chat(world.prompt("where it has room", model=OTHER))
    world.check("and answers", answer.ending is Ending.WHOLE, answer)
    await _until_on(world, {0, 1, 2}, "beside what is too much")
    world.check("nothing ended for it", former == _starts(world.nodes[0]) | _starts(world.nodes[1]))
    both = _starts(world.nodes[2])
    await owners.say(2, ONE)
    await world.until("of two one ends", lambda: len(_starts(world.nodes[2])) == 1, within_ms=BACK_MS)
    world.check("and the other goes on", _starts(world.nodes[2]) < both, both)
    await _gone(world, OTHER)
    await _until_on(world, {0, 1, 2}, "where it has its room again")


async def _full(world: World) -> None:
    """Where all are full it moves to and fro no more, and callers are told; it serves where the first one has room."""
    await _deploy(world, OTHER, OTHER, 1)
    await _until_refused(world, {0: ONE, 1: ROOM_FOR_ONE, 2: ONE}, OTHER)
    waits = _placed(world, OTHER)
    refused = await world.client.chat(world.prompt("where all are full", model=OTHER))
    world.check("callers are told that no node can", refused.error == Outcome.NO_PLACEMENT.value, refused)
    await world.dither("full", 20_000)
    world.check("it stays where it is", waits == _placed(world, OTHER), waits)
    world.check("and nothing of it runs", not _routable(world, OTHER))
    had = _placed(world, DEPLOYMENT)
    await _deploy(world, DEPLOYMENT, MODEL_ALIAS, 2)
    await world.until("one has room", lambda: len(_placed(world, DEPLOYMENT)) == 2, within_ms=BACK_MS)
    (free,) = had.keys() - _placed(world, DEPLOYMENT).keys()
    place = next(number for number, node in enumerate(world.nodes) if node.name == had[free])
    await _until_on(world, {place}, "where the first one has room", OTHER)
    await _deploy(world, DEPLOYMENT, MODEL_ALIAS, 3)
    await _until_on(world, {0, 1, 2} - {place}, "where it was")
    await _gone(world, OTHER)
    await _until_on(world, {0, 1, 2}, "where it has its room again")


async def _gone(world: World, name: str) -> None:
    """A deployment is removed; its engines end late, and only then what waits for their room comes up."""
    status, _ = await world.operate("DELETE", f"/admin/v1/deployments/{name}")
    world.check(f"{name} is removed", status == 200, status)


async def _deploy(world: World, name: str, alias: str, replicas: int) -> None:
    """With nothing that an owner minds."""
    engine: dict[str, Any] = {"driver": "reference", "served_name": SERVED_NAME, "binary": BINARY, "slots": 2}
    body = {"alias": alias, "replicas": replicas, "engine": {**engine, "memory_limit_mib": ENGINE_MIB}}
    status, answer = await world.operate("PUT", f"/admin/v1/deployments/{name}", body)
    world.check("the deployment is accepted", status == 200, answer)


async def _until_on(world: World, numbers: set[int], when: str, deployment: str = DEPLOYMENT) -> None:
    names = {world.nodes[number].name for number in numbers}

    def there() -> bool:
        return {world.kernel.state.assignments[one.assignment].node for one in _routable(world, deployment)} == names

    await world.until(f"{deployment} serves {when}", there, within_ms=BACK_MS)


def _routable(world: World, deployment: str) -> Sequence[ReplicaReport]:
    return world.sight.routable(world.kernel, DeploymentId(deployment))


def _placed(world: World, deployment: str) -> dict[AssignmentId, NodeId]:
    assignments = world.kernel.state.assignments.values()
    return {one.assignment: one.node for one in assignments if one.deployment == deployment}


async def _until_refused(world: World, words: dict[int, Word], deployment: str = DEPLOYMENT) -> None:
    """That the operator is told so. One who leads anew has to hear it anew, also of who is asked for nothing now."""
    wanted = {world.nodes[number].name: word.refusal for number, word in words.items()}

    async def told() -> bool:
        _, document = await world.operate("GET", "/admin/v1/status")
        return [one["declined"] for one in document["deployments"] if one["deployment"] == deployment] == [wanted]

    await world.until_told(f"the operator is told who refuses it: {wanted or 'nobody'}", told, within_ms=BACK_MS)


def _starts(node: NodeHost) -> set[StartId]:
    return {engine.start for engine in node.engines()}
