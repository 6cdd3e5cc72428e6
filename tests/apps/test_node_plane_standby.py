"""The node plane of a controller that does not lead: it says where the one that does answers nodes, and no more."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
from trio.testing import MockClock

from lunanexa_apps.controller.issuing import ClusterKeys
from lunanexa_apps.controller.kernel import NOT_LEADER, Kernel
from lunanexa_apps.controller.nodes import KernelNodePlane
from lunanexa_apps.controller.secrets import begin_with
from lunanexa_core.ids import HolderId, NodeId
from lunanexa_core.leadership import Seat
from lunanexa_core.outcomes import error_document
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.journal import SimulatedJournal
from lunanexa_simulation.signing import SimulatedVerifier
from tests.apps.node_plane import Plane, node_plane
from tests.core.builders import POLICY, SECRET, begin

FIRST_URL, SECOND_URL = "https://ctl-1:8401", "https://ctl-2:8401"
HINTED = attrs.evolve(NOT_LEADER, leader_node_url=FIRST_URL)


@asynccontextmanager
async def standby(one: Plane, node_url: str | None = SECOND_URL) -> AsyncIterator[tuple[Kernel, KernelNodePlane]]:
    clock, store = SimulatedClock(), SimulatedJournal(one.disk.mount())
    seat = Seat(HolderId("holder_2"), "ctl-2:8400")
    kernel = Kernel(store, store, clock, POLICY, seat, fleet_keys=one.fleet_keys)
    keys = ClusterKeys(kernel, one.fleet_keys, clock, SimulatedIds(one.streams.stream("second"), clock))
    async with trio.open_nursery() as nursery:
        await nursery.start(kernel.run, begin_with(begin(node_url=node_url), one.fleet_keys))
        yield kernel, KernelNodePlane(kernel, keys, SimulatedVerifier(one.keyring), one.metrics, SECRET)
        nursery.cancel_scope.cancel("the test is over")


async def test_nodes_are_told_where_the_leader_answers_them(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock, FIRST_URL) as one:
        node = await one.enrolled("node-1")
        async with standby(one) as (kernel, plane):
            assert await plane.heartbeat(node.name, node.peer, node.beat()) == HINTED
            assert await plane.desired(node.name, node.peer, (0, 0), 0) == HINTED
            assert await plane.renew(node.name, node.peer, node.renewal()) == HINTED
            assert await plane.challenge(node.name) == HINTED
            stranger = one.party("node-2")
            assert await plane.desired(NodeId("node-2"), stranger.peer, (0, 0), 0) == HINTED
            # Nobody else is: callers and operators have one address before all.
            assert kernel.unserved() == NOT_LEADER


async def test_a_leader_that_says_no_address_is_not_named(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node = await one.enrolled("node-1")
        async with standby(one) as (_, plane):
            assert await plane.heartbeat(node.name, node.peer, node.beat()) == NOT_LEADER


async def test_the_one_that_took_over_is_named_by_the_one_that_led(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock, FIRST_URL) as one:
        node = await one.enrolled("node-1")
        async with standby(one) as (second, _):
            first = one.kernel
            await first._lease.release()
            with trio.fail_after(60):
                await second.wait_leading()
                while first.leading or first.leader_node_url is None:
                    await first.wait_changed()
            told = await one.plane.heartbeat(node.name, node.peer, node.beat())
            assert told == attrs.evolve(NOT_LEADER, leader_node_url=SECOND_URL)
            assert [known.node_url for known in first.state.controllers.values()] == [FIRST_URL, SECOND_URL]


def test_an_error_names_the_leader_where_there_is_one_to_name() -> None:
    assert error_document(HINTED, "req_1")["error"]["leader_node_url"] == FIRST_URL  # type: ignore[index, call-overload]  # a JSON object
    assert "leader_node_url" not in str(error_document(NOT_LEADER, "req_1"))
