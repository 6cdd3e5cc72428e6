"""The node agent among several controllers: it finds the one that leads, and nothing on its machine notices."""

import json
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from lunanexa_apps.codec import encode
from lunanexa_apps.node.settings import HEARTBEAT_MS
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.identity.names import node_identity
from lunanexa_core.ids import ClusterId
from lunanexa_core.southbound.controllers import controller_url
from lunanexa_core.southbound.heartbeat import ReplicaState
from lunanexa_ports.asgi import Receive, Scope, Send
from lunanexa_simulation.credentials import SimulatedCredentials
from tests.apps.node_world import NODE, NodeWorld, TinyController, answer, assignment, node_world

FIRST, SECOND, THIRD = (EngineAddress(host, 8400) for host in ("controller", "controller-2", "controller-3"))
HEARTBEAT_S = HEARTBEAT_MS / 1_000


@pytest.fixture
def clock() -> MockClock:
    """Time passes only when every task waits."""
    return MockClock(autojump_threshold=0)


class Member:
    """One controller of the service: with ``refusal`` it answers that to everything."""

    def __init__(self, world: NodeWorld, at: EngineAddress, controller: TinyController | None = None) -> None:
        own = world.controller
        self.controller = TinyController(own.keys, own.verifier, own.clock) if controller is None else controller
        self.refusal: str | None = "not_leader"
        self.leader: object = None
        """Whom a refusal names."""
        self.answers: str | None = None
        """The one verb that is answered all the same."""
        self.at = at
        self.asked = 0
        self.credentials = world.serve(self.controller, at.host, self)

    def take_over(self, leader: TinyController) -> None:
        """Leads in the next epoch, from what ``leader`` had made durable."""
        self.controller.known_key = leader.known_key
        self.controller.document = attrs.evolve(leader.document, epoch=leader.document.epoch + 1)
        self.controller.offer(self.controller.signer.sign(encode(self.controller.document)))
        self.refusal = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        self.asked += 1
        if self.refusal is None or scope["path"].rpartition("/")[2] == self.answers:
            await self.controller(scope, receive, send)
        else:
            error = {"code": self.refusal, "leader_node_url": self.leader}
            await answer(send, 503, json.dumps({"error": error}).encode())


def first_of(world: NodeWorld) -> Member:
    """The world's own controller, as one that may step down."""
    world.network.close(FIRST.host, FIRST.port)
    return Member(world, FIRST, world.controller)


async def served_by_the_first(world: NodeWorld, *others: EngineAddress) -> None:
    await world.start(controllers=(FIRST, *others))
    world.controller.desire(assignment())
    await world.controller.until_state(ReplicaState.READY)


async def followed_after(world: NodeWorld, member: Member, began_s: float) -> float:
    """How long it took until the new leader heard that its document is followed."""
    controller = member.controller
    await controller.until(lambda: controller.heartbeats and controller.heartbeats[-1].epoch == 2)
    await controller.until_state(ReplicaState.READY)
    assert len(world.engine.started) == 1
    assert not controller.enrolments
    assert controller.heartbeats[-1].document_refusal is None
    return trio.current_time() - began_s


async def test_the_one_that_leads_is_found_at_the_first_try(clock: MockClock) -> None:
    async with node_world(clock) as world:
        second, third = Member(world, SECOND), Member(world, THIRD)
        third.refusal = "store_unavailable"
        began_s = trio.current_time()
        await world.start(controllers=(SECOND, THIRD, FIRST))
        world.controller.desire(assignment())
        await world.controller.until_state(ReplicaState.READY)
        assert trio.current_time() - began_s < HEARTBEAT_S
        heard = len(world.controller.heartbeats)
        await world.controller.until(lambda: len(world.controller.heartbeats) > heard + 5)
        # It was remembered: nobody else was asked again.
        assert (second.asked, third.asked) == (1, 1)


async def test_a_leader_that_is_gone_is_left_within_a_heartbeat(clock: MockClock) -> None:
    async with node_world(clock) as world:
        second = Member(world, SECOND)
        await served_by_the_first(world, SECOND)
        world.network.kill(FIRST.host, FIRST.port)
        began_s = trio.current_time()
        second.take_over(world.controller)
        assert await followed_after(world, second, began_s) <= HEARTBEAT_S + 0.1


async def test_a_leader_that_stands_still_is_left_before_the_node_is_lost(clock: MockClock) -> None:
    async with node_world(clock) as world:
        second = Member(world, SECOND)
        await served_by_the_first(world, SECOND)
        world.network.block(NODE, FIRST.host)
        world.network.block(FIRST.host, NODE)
        began_s = trio.current_time()
        second.take_over(world.controller)
        # One heartbeat until it is asked, one until it is given up; its long poll is left then too.
        assert await followed_after(world, second, began_s) <= 2 * HEARTBEAT_S + 0.5
        began_s = trio.current_time()
        second.controller.desire()
        await second.controller.until_state(ReplicaState.ABSENT)
        assert trio.current_time() - began_s < HEARTBEAT_S


async def test_a_leader_that_steps_down_is_no_refusal_of_the_node(clock: MockClock) -> None:
    async with node_world(clock) as world:
        first, second = first_of(world), Member(world, SECOND)
        first.refusal = None
        await served_by_the_first(world, SECOND)
        first.refusal = "not_leader"
        await trio.sleep(120)
        began_s = trio.current_time()
        second.take_over(world.controller)
        assert await followed_after(world, second, began_s) <= HEARTBEAT_S + 0.1
        # And back again, where the document that it signs is as high as it must be.
        first.controller = TinyController(world.controller.keys, world.controller.verifier, world.controller_clock)
        second.refusal = "not_leader"
        began_s = trio.current_time()
        first.take_over(second.controller)
        await first.controller.until(lambda: first.controller.heartbeats and first.controller.heartbeats[-1].epoch == 3)
        assert trio.current_time() - began_s <= HEARTBEAT_S + 0.5
        assert len(world.controller.enrolments) == 1
        assert len(world.engine.started) == 1


async def test_none_leads_at_the_start(clock: MockClock) -> None:
    async with node_world(clock) as world:
        first, second = first_of(world), Member(world, SECOND)
        await world.start(controllers=(FIRST, SECOND))
        await trio.sleep(120)
        assert first.asked > 30
        assert second.asked > 30
        began_s = trio.current_time()
        first.refusal = None
        await world.controller.until(lambda: world.controller.heartbeats)
        assert trio.current_time() - began_s <= HEARTBEAT_S + 0.1


async def test_a_node_that_knows_a_follower_alone_finds_the_leader(clock: MockClock) -> None:
    async with node_world(clock) as world:
        second = Member(world, SECOND, world.controller)
        second.leader, first = controller_url(FIRST), first_of(world)
        first.refusal = None
        second.answers = "authorities"
        began_s = trio.current_time()
        await world.start(controllers=(SECOND,))
        world.controller.desire(assignment())
        await world.controller.until_state(ReplicaState.READY)
        assert trio.current_time() - began_s < HEARTBEAT_S
        # Whose it is, and the enrolment that it passed on: then it was asked no more.
        assert second.asked == 2


async def test_the_document_tells_of_controllers_for_the_next_agent_too(clock: MockClock) -> None:
    async with node_world(clock) as world:
        second, third = Member(world, SECOND), Member(world, THIRD)
        world.controller.document = attrs.evolve(
            world.controller.document,
            controllers=("https://", *map(controller_url, (FIRST, SECOND)), "http://controller-9:1"),
        )
        await served_by_the_first(world)
        world.network.kill(FIRST.host, FIRST.port)
        began_s = trio.current_time()
        second.take_over(world.controller)
        assert await followed_after(world, second, began_s) <= 2 * HEARTBEAT_S
        # Its document tells of itself alone, and that the first one, which the agent was told of, may be back.
        second.controller.document = attrs.evolve(second.controller.document, controllers=(controller_url(SECOND),))
        second.controller.desire(assignment())
        heard = second.controller.heartbeats[-1].sequence
        await second.controller.until(lambda: second.controller.heartbeats[-1].sequence > heard + 1)
        world.newest.kill()
        heard = len(second.controller.heartbeats)
        began_s = trio.current_time()
        await world.start(controllers=(FIRST,))
        await second.controller.until(lambda: len(second.controller.heartbeats) > heard)
        assert trio.current_time() - began_s < HEARTBEAT_S
        assert third.asked == 0


async def test_whom_a_follower_names_must_prove_to_be_a_controller(clock: MockClock) -> None:
    """A follower that is not to be trusted any more names machines of others, and itself, and nonsense."""
    async with node_world(clock) as world:
        second = Member(world, SECOND)
        third, foreign = Member(world, THIRD), Member(world, EngineAddress("foreign", 8400), world.controller)
        foreign.refusal = None
        await served_by_the_first(world, SECOND)
        first_heard = len(world.controller.heartbeats)
        world.network.kill(FIRST.host, FIRST.port)
        third.take_over(world.controller)
        other_cluster = world.controller_of("elsewhere")
        other_cluster.cluster = ClusterId("cluster-2")
        for credentials in (
            world.credentials(world.controller_clock),
            show(other_cluster, world),
            show(world.controller, world, party=lambda cluster, _holder: node_identity(cluster, NODE)),
        ):
            world.network.close("foreign", 8400)
            world.network.listen("foreign", 8400, foreign, credentials=credentials)
            for named in (foreign.at, SECOND):
                second.leader = controller_url(named)
                asked = second.asked
                while second.asked < asked + 4:
                    await trio.sleep(1)
        for nonsense in ("https://foreign", "http://foreign:8400", "https://foreign:8400/x", "", None, 7):
            second.leader = nonsense
            await trio.sleep(3 * HEARTBEAT_S)
        assert foreign.asked == 0
        assert len(world.controller.heartbeats) == first_heard
        # Nothing of that keeps it from who is named in earnest.
        second.leader = controller_url(THIRD)
        await third.controller.until(lambda: third.controller.heartbeats)
        assert foreign.asked == 0


async def test_who_need_not_prove_to_be_a_controller_names_nobody(clock: MockClock) -> None:
    """Before the enrolment anybody may answer."""
    async with node_world(clock) as world:
        first, second = first_of(world), Member(world, SECOND)
        first.leader = controller_url(SECOND)
        await world.start(controllers=(FIRST,))
        await trio.sleep(60)
        assert first.asked > 3
        assert second.asked == 0


def show(controller: TinyController, world: NodeWorld, **how: Any) -> SimulatedCredentials:
    credentials = world.credentials(world.controller_clock)
    controller.serve_as(credentials, "foreign", **how)
    return credentials
