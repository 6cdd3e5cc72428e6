"""The node's certificate: renewed in time whatever its clocks do, and by challenge where it is not let in any more."""

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from lunanexa_apps.node.renewal import SPREAD_MS
from lunanexa_core.identity.certificate import VALID_MS, renew_after_ms
from lunanexa_core.identity.trust import next_step, spread
from lunanexa_core.southbound.heartbeat import ReplicaState
from tests.apps.node_world import NODE, NodeWorld, assignment, node_world

VALID_S = 60
HOUR_MS = 3_600_000
LIMIT_S = 600


@pytest.fixture
def clock() -> MockClock:
    """Time passes only when every task waits."""
    return MockClock(autojump_threshold=0)


async def serving(world: NodeWorld) -> None:
    """A node that serves, with a certificate that is good for a minute."""
    world.controller.valid_ms = VALID_S * 1_000
    await world.start()
    world.controller.desire(assignment())
    await world.controller.until_state(ReplicaState.READY)


async def renewed(world: NodeWorld, times: int = 1) -> None:
    before = len(world.controller.serials)
    await world.controller.until(lambda: len(world.controller.serials) >= before + times)


async def heard(world: NodeWorld) -> None:
    before = len(world.controller.heartbeats)
    await world.controller.until(lambda: len(world.controller.heartbeats) > before)


def serve_anew(world: NodeWorld) -> None:
    """The controller has a fresh certificate, as it would have by itself."""
    world.network.close("controller", 8400)
    world.controller.valid_ms = VALID_MS
    world.serve(world.controller)


def serial(world: NodeWorld) -> str:
    certificate = world.credentials(world.clock, world.identity).certificate
    assert certificate is not None
    return certificate.serial


@given(valid_ms=st.integers(-1, 2 * VALID_MS), jitter=st.integers(0, 999))
def test_half_of_what_remains_a_tenth_sooner_or_later(valid_ms: int, jitter: int) -> None:
    after_ms = renew_after_ms(valid_ms, jitter)
    remains_ms = max(0, valid_ms)
    assert remains_ms * 45 // 100 - 1 <= after_ms <= remains_ms * 55 // 100 + 1
    assert after_ms <= remains_ms


async def test_it_is_renewed_again_and_again_by_itself(clock: MockClock) -> None:
    async with node_world(clock, LIMIT_S) as world:
        await serving(world)
        began_s = trio.current_time()
        await renewed(world, 2)
        assert trio.current_time() - began_s + 5 >= 2 * 0.45 * VALID_S
        assert trio.current_time() - began_s <= 2 * 0.55 * VALID_S + 5
        assert [one.challenge for one in world.controller.renewals] == [None] * 2
        assert len(world.controller.enrolments) == 1
        assert len(world.engine.started) == 1


@settings(max_examples=5, deadline=None)
@given(jumps=st.lists(st.integers(-HOUR_MS // 5, HOUR_MS), min_size=1, max_size=4))
def test_it_is_renewed_in_time_whatever_the_wall_clock_does(jumps: list[int]) -> None:
    clock = MockClock(autojump_threshold=0)

    async def main() -> None:
        async with node_world(clock, LIMIT_S) as world:
            world.controller.valid_ms = VALID_S * 1_000
            await world.start()
            await heard(world)
            began_s = trio.current_time()
            for jump_ms in jumps:
                world.clock.jump_wall(jump_ms)
                await trio.sleep(1)
            await renewed(world)
            assert trio.current_time() - began_s + 5 >= 0.45 * VALID_S
            assert trio.current_time() - began_s <= 0.55 * VALID_S + 5
            assert world.controller.renewals[-1].challenge is None

    trio.run(main, clock=clock)


async def test_an_agent_that_starts_goes_by_the_wall_clock_once(clock: MockClock) -> None:
    async with node_world(clock, LIMIT_S) as world:
        await serving(world)
        world.newest.kill()
        await trio.sleep(VALID_S * 0.6)
        began_s = trio.current_time()
        await world.start()
        await renewed(world)
        # Half of its time was over when the agent started.
        assert trio.current_time() - began_s <= 5
        assert world.controller.renewals[-1].challenge is None


async def test_a_week_end_asleep_needs_nobody(clock: MockClock) -> None:
    async with node_world(clock, LIMIT_S) as world:
        await serving(world)
        before = serial(world)
        world.clock.wake(60 * HOUR_MS)
        world.controller_clock.wake(60 * HOUR_MS)
        serve_anew(world)
        began_s = trio.current_time()
        await renewed(world)
        await heard(world)
        assert trio.current_time() - began_s < 120
        assert world.controller.renewals[-1].challenge is not None
        assert serial(world) != before
        assert len(world.controller.enrolments) == 1


async def test_a_machine_that_was_off_for_a_week_end_needs_nobody(clock: MockClock) -> None:
    async with node_world(clock, limit_s=10 * 86_400) as world:
        await serving(world)
        world.newest.kill()
        world.clock.reboot()
        await trio.sleep(60 * 3_600)
        serve_anew(world)
        began_s = trio.current_time()
        await world.start()
        await renewed(world)
        await heard(world)
        assert trio.current_time() - began_s < 30
        assert world.controller.renewals[-1].challenge is not None


async def test_a_certificate_that_is_not_let_in_any_more_is_replaced_by_challenge(clock: MockClock) -> None:
    async with node_world(clock, LIMIT_S) as world:
        await serving(world)
        world.controller.revoked.add(serial(world))
        began_s = trio.current_time()
        await renewed(world)
        await heard(world)
        assert trio.current_time() - began_s < 10
        assert world.controller.renewals[-1].challenge is not None
        assert len(world.engine.started) == 1


async def test_a_controller_whose_clock_is_ahead_lets_the_node_in_by_challenge(clock: MockClock) -> None:
    async with node_world(clock, LIMIT_S) as world:
        await serving(world)
        # Its server certificate is good for a while by each clock; the node's has expired by the controller's.
        serve_anew(world)
        world.controller_clock.jump_wall(2 * VALID_S * 1_000)
        began_s = trio.current_time()
        await renewed(world)
        await heard(world)
        assert trio.current_time() - began_s < 30
        assert world.controller.renewals[-1].challenge is not None


async def test_an_outage_costs_no_renewal(clock: MockClock) -> None:
    async with node_world(clock, LIMIT_S) as world:
        await serving(world)
        before = len(world.controller.serials)
        world.network.refuse("controller", 8400)
        world.network.cut("controller", 8400)
        await trio.sleep(10)
        world.network.refuse("controller", 8400, on=False)
        await heard(world)
        await trio.sleep(5)
        assert len(world.controller.serials) == before
        assert not world.controller.renewals


async def test_an_outage_longer_than_the_certificate_needs_nobody(clock: MockClock) -> None:
    async with node_world(clock, LIMIT_S) as world:
        await serving(world)
        world.network.close("controller", 8400)
        await trio.sleep(1.2 * VALID_S)
        world.serve(world.controller)
        began_s = trio.current_time()
        await renewed(world)
        await heard(world)
        assert trio.current_time() - began_s < 45
        assert world.controller.renewals[-1].challenge is not None
        assert len(world.host.living()) == 1


async def test_a_node_that_is_known_no_more_keeps_its_engines_and_asks_with_pauses(clock: MockClock) -> None:
    async with node_world(clock, LIMIT_S) as world:
        await serving(world)
        world.controller.unknown = True
        asked = len(world.controller.asked)
        await trio.sleep(40)
        assert 10 < len(world.controller.asked) - asked < 100
        assert 3 < len(world.controller.renewals) < 12
        assert len(world.controller.enrolments) == 1
        assert len(world.host.living()) == 1
        world.controller.unknown = False
        await heard(world)


async def test_what_is_refused_for_another_reason_brings_no_new_certificates(clock: MockClock) -> None:
    async with node_world(clock, LIMIT_S) as world:
        await serving(world)
        world.controller.valid_ms = VALID_MS
        await renewed(world)
        world.controller.deaf = True
        asked = world.controller.asked.count("challenge")
        await trio.sleep(40)
        assert len(world.controller.renewals) == 1
        assert 0 < world.controller.asked.count("challenge") - asked < 4


async def test_a_certificate_of_another_node_is_asked_for_again(clock: MockClock) -> None:
    async with node_world(clock, LIMIT_S) as world:
        await serving(world)
        wrong = 2

        def named(identity: str) -> str:
            nonlocal wrong
            wrong -= 1
            return identity.replace(NODE, "node-2") if wrong >= 0 else identity

        world.controller.named = named
        await renewed(world, 3)
        await heard(world)
        assert len(world.engine.started) == 1


# --- whom it trusts ---


async def test_a_rotation_is_followed_step_by_step_and_over_restarts(clock: MockClock) -> None:
    async with node_world(clock, LIMIT_S) as world:
        await serving(world)
        controller = world.controller
        old = controller.signer
        authority, key = controller.keys.make()
        controller.turn_to(spread(controller.trust, authority, key))
        await controller.until(lambda: controller.heartbeats[-1].trust_version == 2)
        assert len(world.identity.trusted) == 2
        assert not controller.renewals
        world.newest.kill()
        await world.start()
        await heard(world)
        assert controller.heartbeats[-1].trust_version == 2
        began_s = trio.current_time()
        controller.turn_to(next_step(controller.trust))
        await renewed(world)
        assert trio.current_time() - began_s <= SPREAD_MS / 1_000 + 1
        given = controller.serials[-1]
        assert controller.heartbeats[-1].certificate not in (None, given)
        serve_anew(world)
        await heard(world)
        assert controller.heartbeats[-1].certificate == given
        controller.turn_to(next_step(controller.trust))
        await controller.until(lambda: controller.heartbeats[-1].trust_version == 4)
        assert list(world.identity.trusted) == [authority.certificate]
        world.newest.kill()
        await world.start()
        await heard(world)
        assert controller.heartbeats[-1].trust_version == 4
        # The old key signs nothing any more.
        controller.turn_to(attrs.evolve(controller.trust, version=9), old)
        await controller.until(lambda: controller.heartbeats[-1].document_refusal == "unknown_key")
        assert controller.heartbeats[-1].trust_version == 4
        assert len(controller.enrolments) == 1
        assert len(world.engine.started) == 1


async def test_a_set_of_keys_is_signed_by_the_set_before_it(clock: MockClock) -> None:
    async with node_world(clock, LIMIT_S) as world:
        await serving(world)
        controller, stranger = world.controller, world.controller_of("stranger")
        good = controller.trust
        # Who holds an authority's key alone can't have his documents followed.
        controller.turn_to(attrs.evolve(stranger.trust, version=7), stranger.signer)
        await controller.until(lambda: controller.heartbeats[-1].document_refusal == "unknown_key")
        assert controller.heartbeats[-1].trust_version == 1
        assert world.identity.trusted == (good.issuing.certificate,)
        controller.turn_to(good)
        await controller.until(lambda: controller.heartbeats[-1].document_refusal is None)


async def test_a_lower_set_is_not_gone_back_to(clock: MockClock) -> None:
    async with node_world(clock, LIMIT_S) as world:
        await serving(world)
        controller, first = world.controller, world.controller.trust
        authority, key = controller.keys.make()
        controller.turn_to(spread(first, authority, key))
        await controller.until(lambda: controller.heartbeats[-1].trust_version == 2)
        controller.turn_to(first)
        generation = controller.document.generation
        await controller.until(lambda: controller.heartbeats[-1].generation == generation)
        assert controller.heartbeats[-1].trust_version == 2
        assert len(world.identity.trusted) == 2


async def test_a_renewal_changes_nobody_whom_the_node_trusts(clock: MockClock) -> None:
    async with node_world(clock, LIMIT_S) as world:
        await serving(world)
        controller, trusted = world.controller, world.identity.trusted
        authority, key = controller.keys.make()
        controller.trust = spread(controller.trust, authority, key)
        await renewed(world)
        await heard(world)
        assert controller.heartbeats[-1].trust_version == 1
        assert world.identity.trusted == trusted


async def test_what_died_between_the_store_and_the_credentials_is_made_whole(clock: MockClock) -> None:
    async with node_world(clock, LIMIT_S) as world:
        await serving(world)
        trusted = world.identity.trusted
        world.newest.kill()
        world.identity.trusted = ()
        await world.start()
        await heard(world)
        assert world.identity.trusted == trusted
