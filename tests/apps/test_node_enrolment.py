"""How a machine becomes a node: by a token, towards a controller that proves whose it is, and by nothing else."""

import attrs
import pytest
import trio
from trio.testing import MockClock

from lunanexa_apps.codec import encode
from lunanexa_apps.node.control import ControlChannel
from lunanexa_apps.node.enrolment import Admission, Admitted, Enroller, NotEnrolled
from lunanexa_apps.node.service import run_node_agent
from lunanexa_apps.node.settings import Shutdown
from lunanexa_apps.node.token_file import TokenFile
from lunanexa_apps.node.trust import Trust
from lunanexa_core.identity.names import node_identity
from lunanexa_core.ids import ClusterId, NodeId
from lunanexa_core.southbound.heartbeat import ReplicaState
from lunanexa_ports.errors import PortFault
from lunanexa_simulation.private_files import PrivateFolder, SimulatedPrivateFiles
from tests.apps.node_world import CLUSTER, NODE, NodeWorld, assignment, node_world
from tests.apps.tiny_controller import TinyController

OTHER = NodeId("node-2")
OTHER_CLUSTER = ClusterId("cluster-2")


@pytest.fixture
def clock() -> MockClock:
    """Time passes only when every task waits."""
    return MockClock(autojump_threshold=0)


async def heard(world: NodeWorld, controller: TinyController | None = None) -> None:
    controller = controller or world.controller
    before = len(controller.heartbeats)
    await controller.until(lambda: len(controller.heartbeats) > before)


async def serving(world: NodeWorld) -> None:
    await world.start()
    world.controller.desire(assignment())
    await world.controller.until_state(ReplicaState.READY)


def nothing_was_sent(controller: TinyController) -> bool:
    """No token, no key, no word of the node reached it."""
    return set(controller.asked) == {"authorities"} and not controller.enrolments


async def test_a_token_makes_a_node_once_and_the_next_agent_needs_none(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await world.start(data_address="10.0.0.7:8410")
        await heard(world)
        (enrolment,) = world.controller.enrolments
        assert world.token is not None
        assert (enrolment.token, enrolment.data_address) == (world.token.token, "10.0.0.7:8410")
        certificate = world.credentials(world.clock, world.identity).certificate
        assert certificate is not None
        assert certificate.identity == node_identity(CLUSTER, NODE).uri
        assert world.spent == 1
        assert world.controller.heartbeats[-1].trust_version == 1
        world.newest.kill()
        await world.start()
        await heard(world)
        assert len(world.controller.enrolments) == 1
        assert world.spent == 2


async def test_a_controller_without_the_tokens_authority_is_told_nothing(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.token = world.controller_of("elsewhere").mint()
        await world.start()
        await trio.sleep(40)
        assert nothing_was_sent(world.controller)
        assert 4 < len(world.controller.asked) < 15
        assert (world.identity.chain, world.identity.trusted) == (None, ())
        assert world.spent == 0


async def test_who_shows_the_right_authority_and_is_not_of_it_is_told_nothing(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.network.close("controller", 8400)
        impostor = world.controller_of("impostor")
        own = world.serve(impostor)
        # It passes on what everybody may see, and puts its own beside it.
        impostor.trust = attrs.evolve(
            world.controller.trust, authorities=(*world.controller.trust.authorities, *impostor.trust.authorities)
        )
        await world.start()
        await trio.sleep(20)
        assert nothing_was_sent(impostor)
        assert own.certificate is not None
        assert world.identity.trusted == ()


async def test_a_token_that_is_refused_is_shown_with_pauses_until_it_is_taken(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.controller.unknown = True
        await world.start()
        await trio.sleep(40)
        assert 4 < len(world.controller.enrolments) < 15
        assert not world.controller.heartbeats
        world.controller.unknown = False
        world.controller.desire(assignment())
        await world.controller.until_state(ReplicaState.READY)


@pytest.mark.parametrize("between", ["gone", "rubbish", "another node's"])
async def test_a_token_that_is_put_in_the_place_of_a_refused_one_is_taken(clock: MockClock, between: str) -> None:
    async with node_world(clock) as world:
        good, files = world.controller.mint(), SimulatedPrivateFiles(PrivateFolder())
        bad = attrs.evolve(good, secret="x" * 43)
        file = TokenFile(files, "token")
        files.replace("token", bad.line().encode())
        parts = world.parts()
        admission = Admission(token=bad, used=file.spent, look=file.read)
        world._nursery.start_soon(
            lambda: run_node_agent(parts.ports, parts.settings, Shutdown(), admission=admission)
        )  # as the world's own agents are started
        await world.controller.until(lambda: world.controller.enrolments)
        match between:
            case "gone":
                files.remove("token")
            case "rubbish":
                files.replace("token", b"lnxnode1_half")
            case _:
                files.replace("token", attrs.evolve(good, node=OTHER).line().encode())
        await trio.sleep(30)
        assert {one.secret for one in world.controller.enrolments} == {bad.secret}
        files.replace("token", good.line().encode())
        await heard(world)
        assert file.read() is None, "it is spent"


async def enrolled_by_hand(world: NodeWorld, limit_ms: int) -> Admitted | NotEnrolled:
    """As ``lunanexa-node enroll`` does it."""
    parts, admission = world.parts(), world.admission()
    ports, settings = parts.ports, parts.settings
    assert admission is not None
    trust = Trust(ports.store, ports.verifier, ports.credentials, settings.node)
    await trust.load()
    channel = ControlChannel(ports.control, ports.signer, settings)
    return await Enroller(ports, settings, trust, channel).enrol_in_time(admission, limit_ms)


async def test_who_asks_too_soon_waits_as_long_as_it_is_told(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.controller.admits_from_ms = world.controller.clock.now().mono_ms + 4_000
        began_s = trio.current_time()
        assert isinstance(await enrolled_by_hand(world, 30_000), Admitted)
        assert 4 <= trio.current_time() - began_s < 6
        assert len(world.controller.enrolments) == 2


async def test_who_would_wait_too_long_is_told_when_and_that_the_token_is_good(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.controller.admits_from_ms = world.controller.clock.now().mono_ms + 60_000
        answer = await enrolled_by_hand(world, 30_000)
        assert isinstance(answer, NotEnrolled)
        assert "wait: 429" in answer.reason
        assert answer.fix.startswith("repeat the same command in 60 s")
        assert len(world.controller.enrolments) == 1
        world.controller.unknown = True
        answer = await enrolled_by_hand(world, 30_000)
        assert isinstance(answer, NotEnrolled)
        assert "new token" in answer.fix


async def test_another_nodes_token_is_not_taken_and_the_node_says_which_it_is(clock: MockClock) -> None:
    async with node_world(clock) as world:
        stolen = world.controller.mint()
        world.token = attrs.evolve(stolen, secret="x" * 43)
        await world.start()
        await trio.sleep(30)
        assert world.controller.enrolments
        assert not world.controller.heartbeats


async def test_an_agent_that_dies_while_it_enrols_goes_on_with_the_same_token(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await world.start()
        await world.controller.until(lambda: "enrol" in world.controller.asked)
        world.newest.kill()
        await world.start()
        await heard(world)
        assert world.token is not None
        assert {one.token for one in world.controller.enrolments} == {world.token.token}


async def test_a_disk_without_room_for_the_identity_delays_it(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.identity.unavailable = True
        await world.start()
        await trio.sleep(60)
        assert nothing_was_sent(world.controller)
        world.identity.unavailable = False
        await heard(world)
        assert world.spent == 1


async def test_a_certificate_of_another_node_is_not_shown(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.controller.named = lambda _: node_identity(CLUSTER, OTHER).uri
        await world.start()
        await trio.sleep(60)
        assert len(world.controller.enrolments) > 1
        assert not world.controller.heartbeats
        assert world.identity.chain is None


async def test_a_node_that_is_enrolled_enrols_anew_with_another_token_and_keeps_its_engines(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await serving(world)
        first, before = world.token, world.identity.chain
        assert first is not None
        world.newest.kill()
        world.token = world.controller.mint()
        await world.start()
        await heard(world)
        assert [one.token for one in world.controller.enrolments] == [first.token, world.token.token]
        assert world.identity.chain not in (before, None)
        await world.controller.until_state(ReplicaState.READY)
        assert len(world.engine.started) == 1


async def test_a_node_that_is_enrolled_waits_with_another_token_as_long_as_it_is_told(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await serving(world)
        world.newest.kill()
        world.token = world.controller.mint()
        world.controller.admits_from_ms = world.controller.clock.now().mono_ms + 4_000
        await world.start()
        await heard(world)
        assert {one.token for one in world.controller.enrolments[1:]} == {world.token.token}
        assert len(world.controller.enrolments) > 2
        assert world.spent == 2, "it is good still, and lets the node in"


async def test_a_new_token_that_is_of_no_use_takes_nothing_from_a_node(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await serving(world)
        before = world.identity.chain, world.identity.trusted
        assert world.token is not None
        for bad in (world.controller_of("elsewhere").mint(), attrs.evolve(world.token, token="tok_9")):
            world.newest.kill()
            world.token = bad
            await world.start()
            await heard(world)
            assert (world.identity.chain, world.identity.trusted) == before
        assert world.spent == 1
        assert len(world.engine.started) == 1


async def test_another_cluster_is_joined_by_its_token_alone(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await serving(world)
        world.newest.kill()
        # Another cluster's controller stands at the address, and the node does not even speak to it.
        world.network.close("controller", 8400)
        other = world.controller_of("other")
        other.cluster = OTHER_CLUSTER
        other.document = attrs.evolve(other.document, cluster=OTHER_CLUSTER)
        other.offer(other.signer.sign(encode(other.document)))
        world.serve(other)
        await world.start()
        await trio.sleep(10)
        assert not other.asked
        assert len(world.host.living()) == 1
        world.newest.kill()
        world.token = other.mint()
        await world.start()
        await heard(world, other)
        # The other cluster desires nothing of this node yet, and the engine of its former one goes on until it does.
        other.desire()
        await other.until_state(ReplicaState.ABSENT)
        assert not world.host.living()


async def test_an_agent_that_neither_is_enrolled_nor_has_a_token_does_not_start(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.token = None
        with pytest.raises(PortFault, match="is not enrolled"):
            await world.start()
