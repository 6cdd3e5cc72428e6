"""What a controller shows to nodes and to their listeners: issued by itself, and never stale."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from structlog.testing import capture_logs
from trio.abc import Clock
from trio.testing import MockClock

from lunanexa_apps.controller.identity import ControllerIdentity
from lunanexa_apps.controller.issuing import ClusterKeys
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.secrets import begin_with
from lunanexa_core.commands import RotateTrust, Tick
from lunanexa_core.identity.certificate import VALID_MS
from lunanexa_core.identity.trust import TrustSet
from lunanexa_core.ids import HolderId
from lunanexa_core.leadership import Seat
from lunanexa_ports.errors import PortFault
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.credentials import SimulatedCredentials
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.fleet_keys import SimulatedFleetKeys
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.journal import SimulatedJournal
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.signing import SimulatedKeyring
from tests.core.builders import POLICY, begin
from tests.replayed import check_replay

HERE = Seat(HolderId("holder_1@one"), "one:8400")
THERE = Seat(HolderId("holder_2@two"), "two:8400")


@attrs.frozen(kw_only=True)
class One:
    """A controller's kernel with its own certificates."""

    kernel: Kernel
    keys: ClusterKeys
    fleet_keys: SimulatedFleetKeys
    server: SimulatedCredentials
    gateway: SimulatedCredentials
    clock: SimulatedClock

    @property
    def trust(self) -> TrustSet:
        assert self.kernel.state.trust is not None
        return self.kernel.state.trust

    def stage(self) -> str:
        return self.trust.stage.value

    def serials(self) -> set[str]:
        return {one.certificate.serial for one in (self.server, self.gateway) if one.certificate is not None}

    async def rotate(self) -> None:
        authority, signing_key = self.fleet_keys.make()
        await self.kernel.ask(RotateTrust(authority=authority, signing_key=signing_key), "operator")


@asynccontextmanager
async def controller(
    time: Clock, disk: SimulatedDisk, keyring: SimulatedKeyring, fleet_keys: SimulatedFleetKeys, seat: Seat = HERE
) -> AsyncIterator[One]:
    assert time.current_time() == trio.current_time()
    clock, streams, store = SimulatedClock(), Streams(4), SimulatedJournal(disk.mount())
    kernel = Kernel(store, store, clock, POLICY, seat, fleet_keys=fleet_keys)
    ids = SimulatedIds(streams.stream("ids"), clock)
    keys = ClusterKeys(kernel, fleet_keys, clock, ids)
    server, gateway = (SimulatedCredentials(keyring, streams.stream(name), clock) for name in ("server", "gateway"))
    identity = ControllerIdentity(kernel, keys, ids, server=server, gateway=gateway)
    async with trio.open_nursery() as nursery:
        await nursery.start(kernel.run, begin_with(begin(), fleet_keys))
        await nursery.start(identity.run)
        yield One(kernel=kernel, keys=keys, fleet_keys=fleet_keys, server=server, gateway=gateway, clock=clock)
        nursery.cancel_scope.cancel("the test is over")


def made() -> tuple[SimulatedDisk, SimulatedKeyring, SimulatedFleetKeys]:
    keyring = SimulatedKeyring()
    return SimulatedDisk(), keyring, SimulatedFleetKeys(keyring, Streams(5).stream("fleet keys"))


async def test_it_has_both_certificates_when_it_has_started(autojump_clock: MockClock) -> None:
    disk, keyring, fleet_keys = made()
    async with controller(autojump_clock, disk, keyring, fleet_keys) as one:
        assert one.server.certificate is not None
        assert one.gateway.certificate is not None
        assert one.server.certificate.identity == "lunanexa://cl_1/controller/holder_1:one"
        assert one.gateway.certificate.identity == "lunanexa://cl_1/gateway/holder_1:one"
        assert one.server.trusted == one.gateway.trusted == (one.trust.issuing.fingerprint,)
        kernel = one.kernel
    check_replay(kernel, disk)


async def test_it_renews_them_at_half_of_their_time(autojump_clock: MockClock) -> None:
    disk, keyring, fleet_keys = made()
    async with controller(autojump_clock, disk, keyring, fleet_keys) as one:
        first = one.serials()
        one.clock.wake(VALID_MS * 4 // 10)
        await trio.sleep(61)
        assert one.serials() == first
        one.clock.wake(VALID_MS * 2 // 10)
        await trio.sleep(61)
        assert not one.serials() & first


async def test_it_follows_a_rotation_step_by_step_and_forgets_the_old_keys(autojump_clock: MockClock) -> None:
    disk, keyring, fleet_keys = made()
    async with controller(autojump_clock, disk, keyring, fleet_keys) as one:
        old, first = one.trust, one.serials()
        await one.rotate()
        await trio.sleep(1)
        assert {len(shown.trusted) for shown in (one.server, one.gateway)} == {2}
        assert one.serials() == first, "the new authority is not told to all yet"
        await one.kernel.ask(Tick(), "janitor")
        await trio.sleep(1)
        assert one.stage() == "turning"
        assert not one.serials() & first
        await one.kernel.ask(Tick(), "janitor")
        await trio.sleep(1)
        assert one.stage() == "stable"
        assert one.server.trusted == one.gateway.trusted == (one.trust.issuing.fingerprint,)
        assert old.issuing.fingerprint not in fleet_keys.authorities()
        assert old.signing.key_id not in fleet_keys.signers()
        trust = one.trust
    async with controller(autojump_clock, disk, keyring, fleet_keys) as again:
        assert again.trust == trust, "a restart goes on with the keys that there are"


async def test_a_leader_that_lost_all_keys_begins_anew(autojump_clock: MockClock) -> None:
    disk, keyring, fleet_keys = made()
    async with controller(autojump_clock, disk, keyring, fleet_keys) as one:
        before = one.trust
    others = SimulatedFleetKeys(keyring, Streams(6).stream("other keys"))
    async with controller(autojump_clock, disk, keyring, others) as one:
        assert one.trust.version == before.version + 1
        assert set(others.authorities()) == set(one.server.trusted)


async def test_another_machine_without_the_clusters_keys_does_not_take_over(autojump_clock: MockClock) -> None:
    disk, keyring, fleet_keys = made()
    async with controller(autojump_clock, disk, keyring, fleet_keys):
        pass
    others = SimulatedFleetKeys(keyring, Streams(6).stream("other keys"))
    with pytest.RaisesGroup(
        pytest.RaisesExc(PortFault, match="copy the folder controller/secrets"),
        flatten_subgroups=True,
        allow_unwrapped=True,
    ):
        async with controller(autojump_clock, disk, keyring, others, THERE):
            pass
    async with controller(autojump_clock, disk, keyring, fleet_keys, THERE) as one:
        assert one.kernel.leading


async def test_who_follows_waits_for_the_keys_of_a_rotation_and_leads_with_them(autojump_clock: MockClock) -> None:
    disk, keyring, fleet_keys = made()
    theirs = SimulatedFleetKeys(keyring, Streams(6).stream("their keys"))

    async def lead(scope: trio.CancelScope, *, task_status: trio.TaskStatus[One]) -> None:
        with scope:
            async with controller(autojump_clock, disk, keyring, fleet_keys) as one:
                task_status.started(one)
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        leading = trio.CancelScope()
        one: One = await nursery.start(lead, leading)
        fleet_keys.copy_to(theirs)
        with capture_logs() as logs:
            async with controller(autojump_clock, disk, keyring, theirs, THERE) as two:
                assert not two.kernel.leading
                await one.rotate()
                for _ in range(2):
                    await one.kernel.ask(Tick(), "janitor")
                assert one.stage() == "stable"
                leading.cancel("its machine is gone")
                await trio.sleep(10 * POLICY.lease_ms / 1_000)
                assert not two.kernel.leading, "it would begin another trust, and every node would be lost"
                fleet_keys.copy_to(theirs)
                await two.kernel.wait_leading()
                assert two.trust == one.trust
        assert [line["event"] for line in logs].count("cluster_keys_missing") == 1


async def test_keys_that_are_unusable_are_told_of_once_and_used_when_they_are_back(autojump_clock: MockClock) -> None:
    disk, keyring, fleet_keys = made()
    async with controller(autojump_clock, disk, keyring, fleet_keys) as one:
        issue = fleet_keys.issue

        def fail(*_: object) -> str:
            raise PortFault("the key of the authority f1 is not in /keys: copy it there")

        fleet_keys.issue = fail  # type: ignore[method-assign,assignment]  # a folder without the key
        first = one.serials()
        one.clock.wake(VALID_MS * 6 // 10)
        with capture_logs() as logs:
            await trio.sleep(120)
        told = [line for line in logs if line["event"] == "cluster_keys_unusable"]
        assert len(told) == 1
        assert "copy it there" in told[0]["problem"]
        assert one.keys.problem is not None
        assert one.serials() == first, "what is in force stays so"
        fleet_keys.issue = issue  # type: ignore[method-assign]  # copied there
        await trio.sleep(10)
        assert not one.serials() & first
        assert one.keys.problem is None
