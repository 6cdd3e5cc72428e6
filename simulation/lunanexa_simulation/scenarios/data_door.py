"""Gateways reach engines through their nodes' data listeners and nowhere else. A listener lets in a gateway of its
cluster that names a start which serves there, and nobody else; an old start leads nowhere; where a node says that its
engines are, nobody goes; and when a node is cut off its lease ends what passes, though its engine lives."""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.identity.certificate import VALID_MS
from lunanexa_core.identity.names import gateway_identity, node_identity
from lunanexa_core.ids import ClusterId, HolderId, StartId
from lunanexa_core.outcomes import Outcome
from lunanexa_core.policy import Policy
from lunanexa_ports.asgi import Receive, Scope, Send
from lunanexa_ports.http_client import HttpBroken, HttpRequest, HttpUnreachable, TlsPeer
from lunanexa_simulation.client import Answer, Ending
from lunanexa_simulation.controller_host import HOST
from lunanexa_simulation.credentials import SimulatedCredentials
from lunanexa_simulation.faults import Way, crash_engine, join, part
from lunanexa_simulation.fleet import DATA_PORT
from lunanexa_simulation.http_client import SimulatedHttpClient
from lunanexa_simulation.node_host import NodeHost
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.hostile import cluster_of, next_heartbeat, says, shown_as
from lunanexa_simulation.scenarios.steps import at_rest, receipts_of, served, until_listed
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

ROWS: Final = 30
FLOOD: Final = 60
PLAN: Final = WorldPlan(
    nodes=2,
    engine_arguments=("--ttft-ms", "32", "--itl-ms", "256"),
    policy=Policy(node_rows_per_minute=60, node_rows_burst=ROWS),
)
STREAMS: Final = 4
CALLS: Final = 6
BACK_MS: Final = 40_000
OK: Final = 200
REFUSED: Final = "refused"
UNREACHABLE: Final = "unreachable"
ELSEWHERE: Final = EngineAddress("elsewhere", 666)


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        await world.start()
        await world.deploy(replicas=2)
        await _until_both(world, "at first")
        await until_listed(world, "at first")
        await _who_is_let_in(world)
        await _an_old_start(world)
        await _a_shut_door(world)
        await _a_hostile_address(world)
        await _a_flood(world)
        await _the_lease_lapses(world)
        await served(world, "after all")
        await at_rest(world, "after all")
        await world.stop()


async def _who_is_let_in(world: World) -> None:
    gateway, (node, other) = world.controller.gateway, world.nodes
    right = TlsPeer(identity=_identity(world, node), server_name=_start(node))
    others = gateway_identity(ClusterId("cl_other"), HolderId("holder"))
    ours = attrs.evolve(others, cluster=cluster_of(world))
    for name, credentials, wanted, expected in (
        ("a gateway that names what serves there is let in", gateway, right, OK),
        (
            "who expects another node goes no further",
            gateway,
            attrs.evolve(right, identity=_identity(world, other)),
            UNREACHABLE,
        ),
        ("another node's start is unknown", gateway, attrs.evolve(right, server_name=_start(other)), REFUSED),
        ("a node is no gateway", other.own_credentials(), right, REFUSED),
        ("who is one is let in", shown_as(world, ours), right, OK),
        ("another cluster's is none", shown_as(world, others), right, REFUSED),
        ("nor one whose time is over", shown_as(world, ours, age_ms=VALID_MS + 1_000), right, REFUSED),
        ("who shows no certificate is nobody", gateway, attrs.evolve(right, anonymous=True), REFUSED),
        ("nothing passes in the clear", gateway, None, REFUSED),
    ):
        told = await _ask(world, node, credentials, wanted)
        world.check(name, told == expected, told)


async def _an_old_start(world: World) -> None:
    node, old = world.nodes[0], _start(world.nodes[0])
    wanted = TlsPeer(identity=_identity(world, node), server_name=old)
    crash_engine(world, old)
    await world.until("another start serves", lambda: world.routable() == 2 and _start(node) != old, within_ms=BACK_MS)
    told = await _ask(world, node, world.controller.gateway, wanted)
    world.check("the old start leads nowhere", told == REFUSED, told)
    told = await _ask(world, node, world.controller.gateway, attrs.evolve(wanted, server_name=_start(node)))
    world.check("the new one to its engine", told == OK, told)


async def _a_shut_door(world: World) -> None:
    """Whoever can't be connected with is asked nothing; another replica is."""
    node = world.nodes[0]
    world.network.refuse(node.data_host, DATA_PORT)
    async with world.streams(CALLS, "while a listener is shut", max_tokens=1) as streams:
        pass
    world.network.refuse(node.data_host, DATA_PORT, on=False)
    world.check("all are served", {answer.ending for _, answer in streams} == {Ending.WHOLE}, streams)
    told = [receipts_of(world, answer.workload)[0].settlement.attempts for _, answer in streams]
    failed = {(one.start, one.failure) for attempts in told for one in attempts if one.failure is not None}
    world.check("some by a second attempt", failed == {(_start(node), "engine_unreachable")}, told)


async def _a_hostile_address(world: World) -> None:
    """A node may say what it likes of its engines' place."""
    strayed: list[str] = []

    async def elsewhere(scope: Scope, _receive: Receive, send: Send) -> None:
        strayed.append(scope["path"])
        await send({"type": "http.response.start", "status": OK, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    world.network.listen(ELSEWHERE.host, ELSEWHERE.port, elsewhere)
    await world.until_told("a lie is taken", lambda: _lie(world, world.nodes[0]), within_ms=5_000)
    places = {(report.host, report.port) for report in world.kernel.state.replicas.values()}
    world.check("the journal has it", (ELSEWHERE.host, ELSEWHERE.port) in places, places)
    async with world.streams(CALLS, "while a node lies", max_tokens=1) as streams:
        pass
    starts = {receipts_of(world, answer.workload)[0].settlement.attempts[0].start for _, answer in streams}
    world.check("the node serves as before", _start(world.nodes[0]) in starts, starts)
    world.check("with whole answers", {answer.ending for _, answer in streams} == {Ending.WHOLE}, streams)
    world.check("and nobody goes where it says", not strayed, strayed)
    world.network.close(ELSEWHERE.host, ELSEWHERE.port)


async def _lie(world: World, node: NodeHost) -> bool:
    told = next_heartbeat(world, node)
    lies = [attrs.evolve(report, host=ELSEWHERE.host, port=ELSEWHERE.port) for report in told.replicas]
    return await says(world, node, attrs.evolve(told, replicas=tuple(lies))) is None


async def _a_flood(world: World) -> None:
    """A node that reports something else each time, as fast as it is heard, writes no more than its budget, is granted
    nothing meanwhile, and is let go on with when it has ended."""
    node, rows = world.nodes[0], len(world.sight.rows)
    for number in range(FLOOD):
        told = next_heartbeat(world, node)
        reports = [attrs.evolve(report, restarts=number) for report in told.replicas]
        refused = await says(world, node, attrs.evolve(told, replicas=tuple(reports)))
        own_is_newer = refused is not None and refused.code == Outcome.STALE_GENERATION.value
        world.check("a flood is answered", refused is None or own_is_newer, refused)
    written = [row for row in world.sight.rows[rows:] if row.action == "replica.changed"]
    world.check("and writes no more than its budget", 0 < len(written) <= ROWS + FLOOD // 10, len(written))
    status, document = await world.operate("GET", "/admin/v1/status")
    codes = [alert["code"] for alert in document["alerts"]]
    world.check("the status says so", (status, codes) == (200, ["reports_withheld"]), document["alerts"])
    world.check("the node is granted nothing", world.routable() == 1, world.routable())
    await served(world, "by the other node")
    # The agent's own heartbeats count again once they have come as far as the numbers that the flood took.
    await world.until("its replica is routable after it", lambda: world.routable() == 2, within_ms=FLOOD * 3_000)


async def _the_lease_lapses(world: World) -> None:
    node = world.nodes[0]
    running, wanted = node.running(), TlsPeer(identity=_identity(world, node), server_name=_start(node))
    async with world.streams(STREAMS, "cut off") as streams:
        world.check("streams pass its listener", bool(node.at_door()))
        await world.dither("cut off", 2_000)
        part(world, 0, Way.TO_NODE)
        await world.until(
            "nothing passes when the lease has lapsed",
            lambda: not node.at_door(),
            within_ms=world.plan.policy.node_lease_ms + 100,
        )
        told = await _ask(world, node, world.controller.gateway, wanted)
        world.check("nobody is let in without a lease", told == REFUSED, told)
        world.check("its engine lives", node.running() == running, node.running())
    cut = [(body, answer) for body, answer in streams if answer.ending is not Ending.WHOLE]
    world.check("some were cut, and others not", 0 < len(cut) < STREAMS, streams)
    for body, answer in cut:
        _check_cut(world, body, answer, _start(node))
    join(world, 0)
    await _until_both(world, "when it is heard again")
    world.check("by the same engine", node.running() == running, node.running())
    told = await _ask(world, node, world.controller.gateway, wanted)
    world.check("which is reached again", told == OK, told)


def _check_cut(world: World, body: Mapping[str, Any], answer: Answer, start: StartId) -> None:
    world.check("who is cut is told so", answer.ending is Ending.ERROR_FRAME, answer)
    world.check_answer("after the beginning of the engine's answer", body, answer)
    attempts = receipts_of(world, answer.workload)[0].settlement.attempts
    world.check(
        "the receipt says where", [(one.start, one.failure) for one in attempts] == [(start, "engine_cut")], attempts
    )


async def _ask(world: World, node: NodeHost, credentials: SimulatedCredentials, wanted: TlsPeer | None) -> int | str:
    """What comes of a question for an engine's health, from the controller's machine."""
    client = SimulatedHttpClient(world.network, HOST, credentials=credentials)
    request = HttpRequest(method="GET", host=node.data_host, port=DATA_PORT, target="/health", tls=wanted)
    try:
        async with client.exchange(request) as response:
            return response.status
    except HttpUnreachable:
        return UNREACHABLE
    except HttpBroken:
        return REFUSED


def _identity(world: World, node: NodeHost) -> str:
    return node_identity(cluster_of(world), node.name).uri


def _start(node: NodeHost) -> StartId:
    """Of the one engine that runs there."""
    return node.running()[0][1]


async def _until_both(world: World, when: str) -> None:
    await world.until(f"both replicas are routable {when}", lambda: world.routable() == 2, within_ms=BACK_MS)
