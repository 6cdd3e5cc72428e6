"""The kernel task over a simulated journal: batches, faults of the store, poison, fences, recovery."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from lunanexa_apps.controller.dispatch import KernelDispatch
from lunanexa_apps.controller.drain import drain
from lunanexa_apps.controller.gateway.session import run_gateway_session
from lunanexa_apps.controller.janitor import run_janitor
from lunanexa_apps.controller.kernel import NOT_LEADER, Kernel
from lunanexa_apps.controller.replay import replay
from lunanexa_core.commands import (
    ApplyDeployment,
    Command,
    OpenSession,
    Reconcile,
    SettleWorkload,
)
from lunanexa_core.deployment import Deployment
from lunanexa_core.ids import AssignmentId, HolderId, SessionId, WorkloadId
from lunanexa_core.keys import secret_digest
from lunanexa_core.leadership import Seat
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.workload import LedgerReceipt, Settlement, Usage
from lunanexa_ports.dispatch import Admitted, Grant, Repeated
from lunanexa_ports.errors import PortFault
from lunanexa_ports.http_client import TlsPeer
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.journal import SimulatedJournal
from tests.core.builders import (
    ASSIGNMENT,
    POLICY,
    SEAT,
    SECRET,
    SESSION,
    START,
    api_key,
    begin,
    certificate,
    heartbeat,
    joining,
    report,
    reported,
    request,
    spec,
)
from tests.replayed import check_replay

pytestmark = pytest.mark.usefixtures("mock_clock")

BEGIN = begin(keys=(api_key(),))
FLEET: tuple[Command, ...] = (
    *joining(),
    ApplyDeployment(spec=spec()),
    Reconcile((ASSIGNMENT,)),
    reported(heartbeat(1, report())),
    OpenSession(SESSION),
)


@asynccontextmanager
async def kernel_on(disk: SimulatedDisk, seat: Seat = SEAT) -> AsyncIterator[Kernel]:
    store = SimulatedJournal(disk.mount())
    kernel = Kernel(store, store, SimulatedClock(), POLICY, seat)
    async with trio.open_nursery() as nursery:
        await nursery.start(kernel.run, BEGIN)
        yield kernel
        nursery.cancel_scope.cancel("the test is over")
    check_replay(kernel, disk)


async def build_fleet(kernel: Kernel) -> None:
    for command in FLEET:
        answer = await kernel.ask(command, "test")
        assert not isinstance(answer, Refusal), answer


def settlement(number: int = 1) -> Settlement:
    return Settlement(workload=request(number).workload, outcome=None)


async def test_a_request_is_admitted_granted_and_settled() -> None:
    async with kernel_on(SimulatedDisk()) as kernel:
        await build_fleet(kernel)
        dispatch = KernelDispatch(kernel, SECRET)
        assert isinstance(await dispatch.admit(request()), Admitted)
        async with dispatch.watch(request().workload) as watch:
            grant = await watch.next()
        assert isinstance(grant, Grant)
        assert (grant.start, grant.served_name, grant.port) == (START, "tiny", 9000)
        assert grant.engine_key
        assert grant.engine_key not in str(kernel.state)
        receipt = await dispatch.settle(settlement())
        assert isinstance(receipt, LedgerReceipt)
        assert await dispatch.settle(attrs.evolve(settlement(), detail="again")) == receipt
        assert await dispatch.settle(Settlement(workload=WorkloadId("wl_none"), outcome=None)) is None
        assert not kernel.state.open
        assert not kernel.observed.held
        cards = await dispatch.models(secret_digest(SECRET))
        assert not isinstance(cards, Refusal)
        assert [card.alias for card in cards] == ["tiny"]


async def test_a_grant_names_the_node_and_which_of_its_certificates_count_no_more() -> None:
    """Another machine had the name before, and may answer at the address with what it has."""
    async with kernel_on(SimulatedDisk()) as kernel:
        first, second = (certificate(number, issued=kernel.now()) for number in (1, 2))
        address = "10.0.0.2:8500"
        await kernel.ask(joining()[0], "test")
        await kernel.ask(joining(certificate=first, data_address=address)[1], "test")
        later = joining(again=True, token="tok_2", public_key="bb" * 32, certificate=second, data_address=address)
        heard = reported(heartbeat(1, report()), public_key="bb" * 32)
        for command in (*later, *FLEET[2:4], heard, FLEET[5]):
            await kernel.ask(command, "test")
        dispatch = KernelDispatch(kernel, SECRET)
        assert isinstance(await dispatch.admit(request()), Admitted)
        async with dispatch.watch(request().workload) as watch:
            grant = await watch.next()
        assert isinstance(grant, Grant)
        identity = "lunanexa://cl_1/node/node-1"
        assert grant.tls == TlsPeer(identity=identity, server_name=START, void=frozenset({"1"}))
        assert (grant.host, grant.port) == ("10.0.0.2", 8500)


async def test_requests_do_not_bother_those_who_wait_for_the_fleet() -> None:
    async with kernel_on(SimulatedDisk()) as kernel, trio.open_nursery() as nursery:
        await build_fleet(kernel)
        asked = 0

        def changed() -> bool:
            nonlocal asked
            asked += 1
            return kernel.state.deployments[spec().deployment].generation > 1

        nursery.start_soon(kernel.wait_until, changed)
        await wait_all_tasks_blocked()
        dispatch = KernelDispatch(kernel, SECRET)
        assert isinstance(await dispatch.admit(request()), Admitted)
        await dispatch.settle(settlement())
        assert asked == 1
        await kernel.ask(reported(heartbeat(2, report(restarts=1))), "test")
        assert asked == 2
        assert nursery.child_tasks
        await kernel.ask(ApplyDeployment(spec=spec(replicas=2)), "test")
        await wait_all_tasks_blocked()
        assert not nursery.child_tasks
        assert not kernel._awaited


async def test_everything_that_waits_shares_one_transaction() -> None:
    disk = SimulatedDisk()
    async with kernel_on(disk) as kernel:
        await build_fleet(kernel)
        dispatch = KernelDispatch(kernel, SECRET)
        answers: list[Admitted | Repeated | Refusal] = []

        async def admit(number: int) -> None:
            answers.append(await dispatch.admit(request(number)))

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(admit, number)
        # Two slots and two places: the batch saw its own admissions.
        assert sum(isinstance(answer, Admitted) for answer in answers) == 4
        refused = [answer for answer in answers if isinstance(answer, Refusal)]
        assert {answer.outcome for answer in refused} == {Outcome.QUEUE_FULL}
        rebuilt = await replay(SimulatedJournal(disk.mount()))
        assert rebuilt.state == kernel.state
        assert rebuilt.head == kernel.head


async def test_a_store_that_is_down_is_a_503_and_nothing_is_half_done(mock_clock: MockClock) -> None:
    disk = SimulatedDisk()
    async with kernel_on(disk) as kernel:
        await build_fleet(kernel)
        dispatch = KernelDispatch(kernel, SECRET)
        answers: list[Admitted | Repeated | Refusal] = []

        async def admit(number: int) -> None:
            answers.append(await dispatch.admit(request(number)))

        disk.faults.unavailable = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(admit, 1)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(admit, 2)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(1)
            await trio.testing.wait_all_tasks_blocked()
            assert not kernel.store_ok
            assert [answer.outcome for answer in answers if isinstance(answer, Refusal)] == [Outcome.STORE_UNAVAILABLE]
            disk.faults.unavailable = False
            mock_clock.jump(1)
        assert await dispatch.settle(settlement()) is None
        assert [type(answer) for answer in answers] == [Refusal, Refusal]
        assert not kernel.state.open
        assert isinstance(await dispatch.admit(request(3)), Admitted)
        assert (await replay(SimulatedJournal(disk.mount()))).state == kernel.state


async def test_an_append_of_unknown_outcome_is_answered_as_what_it_was() -> None:
    disk = SimulatedDisk()
    async with kernel_on(disk) as kernel:
        await build_fleet(kernel)
        epoch = kernel.epoch
        disk.faults.unknown_outcomes = 1
        dispatch = KernelDispatch(kernel, SECRET)
        assert isinstance(await dispatch.admit(request()), Admitted)
        assert kernel.epoch > epoch
        assert isinstance(await dispatch.settle(settlement()), LedgerReceipt)
        rebuilt = await replay(SimulatedJournal(disk.mount()))
        assert rebuilt.state.receipts == kernel.state.receipts


async def test_a_poison_command_is_answered_and_its_neighbours_are_served() -> None:
    async with kernel_on(SimulatedDisk()) as kernel:
        await build_fleet(kernel)
        answers: dict[str, object] = {}

        async def ask(name: str, command: Command) -> None:
            answers[name] = await kernel.ask(command, "test")

        poison = reported(None)  # type: ignore[arg-type]  # a bug of ours, planted
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "good", ApplyDeployment(spec=spec(replicas=2)))
            nursery.start_soon(ask, "poison", poison)
            nursery.start_soon(ask, "other", Reconcile((AssignmentId("asg_2"),)))
        assert isinstance(answers["good"], Deployment)
        assert isinstance(answers["poison"], Refusal)
        assert answers["poison"].outcome is Outcome.INTERNAL
        assert kernel.state == kernel._pending  # the batch was undone and redone singly


async def test_a_settlement_that_cannot_be_taken_ends_its_workload(mock_clock: MockClock) -> None:
    async with kernel_on(SimulatedDisk()) as kernel:
        await build_fleet(kernel)
        dispatch = KernelDispatch(kernel, SECRET)
        for number in (1, 2):
            assert isinstance(await dispatch.admit(request(number)), Admitted)
        mock_clock.jump(3)
        poison = attrs.evolve(settlement(), usage=Usage(input_tokens=2**60))  # No row can hold it.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kernel.ask, SettleWorkload(poison), "test")
            nursery.start_soon(kernel.ask, SettleWorkload(settlement(2)), "test")
        receipt, neighbour = (kernel.state.receipts[request(number).workload] for number in (1, 2))
        assert (receipt.settlement.outcome, receipt.settlement.detail) == (Outcome.INTERNAL, "settlement_failed")
        assert receipt.settlement.usage == Usage()
        assert receipt.settlement.total_ms == 3_000
        assert neighbour.settlement == settlement(2)
        assert await kernel.ask(SettleWorkload(settlement()), "test") == receipt
        assert not kernel.state.open
        assert not kernel.observed.held
        assert kernel.state == kernel._pending


async def test_what_a_live_gateway_never_settles_is_overdue(mock_clock: MockClock) -> None:
    async with kernel_on(SimulatedDisk()) as kernel, trio.open_nursery() as nursery:
        await build_fleet(kernel)
        await nursery.start(run_janitor, kernel)
        dispatch = KernelDispatch(kernel, SECRET)
        await nursery.start(run_gateway_session, dispatch, SESSION)
        assert isinstance(await dispatch.admit(request()), Admitted)
        began_s = trio.current_time()
        while kernel.state.open:
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(0.5)
        (receipt,) = kernel.state.receipts.values()
        assert receipt.settlement.detail == "overdue"
        assert trio.current_time() - began_s >= (request().deadline_ms + POLICY.overdue_ms) / 1000
        assert not kernel.observed.held
        nursery.cancel_scope.cancel("the test is over")


OTHER = Seat(HolderId("holder_2"), "two:8400")


async def until(condition: Callable[[], bool], clock: MockClock) -> None:
    with trio.fail_after(60):  # Of the simulated clock.
        while not condition():
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(0.1)


async def test_a_second_controller_follows_and_refuses_while_the_first_leads(mock_clock: MockClock) -> None:
    disk = SimulatedDisk()
    async with kernel_on(disk) as first:
        await build_fleet(first)
        async with kernel_on(disk, OTHER) as second:
            assert (second.leading, second.epoch) == (False, 0)
            assert second.state == first.state
            assert await second.ask(ApplyDeployment(spec=spec(replicas=2)), "test") == NOT_LEADER
            for _ in range(200):  # Ten leases.
                mock_clock.jump(0.15)
                await trio.testing.wait_all_tasks_blocked()
            assert (first.leading, second.leading) == (True, False)
            await first.ask(ApplyDeployment(spec=spec(replicas=2)), "test")
            await until(lambda: second.head == first.head, mock_clock)
            assert second.state == first.state


async def test_another_installation_leads_only_with_the_same_secrets_or_after_a_restore(mock_clock: MockClock) -> None:
    disk = SimulatedDisk()
    async with kernel_on(disk) as first:
        await build_fleet(first)
    strange = attrs.evolve(BEGIN, keys=(api_key(digest=secret_digest("lnx_" + "s" * 43)),))

    def kernel(seat: Seat) -> Kernel:
        store = SimulatedJournal(disk.mount())
        return Kernel(store, store, SimulatedClock(), POLICY, seat)

    with pytest.raises(PortFault, match="copy the folder controller/secrets"):
        await kernel(OTHER).run(strange)
    async with trio.open_nursery() as nursery:
        changed = kernel(SEAT)
        await nursery.start(changed.run, strange)
        assert changed.leading, "an installation may change its own secrets"
        check_replay(changed, disk)
        nursery.cancel_scope.cancel("the test is over")
    assert mock_clock.current_time() == trio.current_time()


async def live(kernel: Kernel, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    """A kernel whose life ends with the scope that it starts with."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(kernel.run, BEGIN)
            task_status.started(scope)


async def test_a_follower_takes_over_at_once_from_a_leader_that_stops(mock_clock: MockClock) -> None:
    disk = SimulatedDisk()
    store = SimulatedJournal(disk.mount())
    first = Kernel(store, store, SimulatedClock(), POLICY, SEAT)
    async with trio.open_nursery() as nursery:
        first_life = await nursery.start(live, first)
        await build_fleet(first)
        async with kernel_on(disk, OTHER) as second:
            epoch, began_s = first.epoch, trio.current_time()
            first_life.cancel()
            await until(lambda: second.leading, mock_clock)
            assert trio.current_time() - began_s < 1
            assert second.epoch > epoch
            assert second.state.deployments == first.state.deployments
    check_replay(first, disk)


@pytest.mark.parametrize("session", [SESSION, SessionId("ses_other")])
async def test_a_drain_waits_for_what_this_process_relays_alone(autojump_clock: MockClock, session: SessionId) -> None:
    """Not for what the leader before it had in hand, though that may have been this very process."""
    disk, answer_s = SimulatedDisk(), 5.0
    async with kernel_on(disk) as first:
        await build_fleet(first)
        assert isinstance(await KernelDispatch(first, SECRET).admit(request()), Admitted)
    async with kernel_on(disk, OTHER) as kernel:
        await kernel.ask(reported(heartbeat(2, report())), "test")
        await kernel.ask(OpenSession(session), "test")
        dispatch = KernelDispatch(kernel, SECRET)
        assert isinstance(await dispatch.admit(request(2, session=session)), Admitted)
        began_s = autojump_clock.current_time()
        assert (len(kernel.state.open), kernel.relayed) == (2, 1)
        await drain(kernel, 1_000)
        assert autojump_clock.current_time() - began_s == pytest.approx(1), "no longer than it may"

        async def relay() -> None:
            await trio.sleep(answer_s)
            assert isinstance(await dispatch.settle(settlement(2)), LedgerReceipt)

        began_s = autojump_clock.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relay)
            await drain(kernel, 60_000)
            assert answer_s <= autojump_clock.current_time() - began_s < answer_s + 1
        assert set(kernel.state.open) == {request().workload}


async def test_a_leader_without_its_store_is_succeeded_and_follows_when_it_is_back(mock_clock: MockClock) -> None:
    disk = SimulatedDisk()
    way = disk.mount()
    store = SimulatedJournal(way)
    first = Kernel(store, store, SimulatedClock(), POLICY, SEAT)
    async with trio.open_nursery() as nursery:
        await nursery.start(first.run, BEGIN)
        await build_fleet(first)
        dispatch = KernelDispatch(first, SECRET)
        assert isinstance(await dispatch.admit(request()), Admitted)
        ended: list[Refusal] = []
        async with dispatch.watch(request().workload) as watch, kernel_on(disk, OTHER) as second:
            watch.on_void(ended.append)
            way.cut, began_s = True, trio.current_time()
            await until(lambda: second.leading, mock_clock)
            assert trio.current_time() - began_s <= POLICY.lease_ms / 1000 + 1
            # It can't know yet, and what it relays goes on; it can't write.
            assert first.leading
            assert not ended
            way.cut = False
            await until(lambda: not first.leading, mock_clock)
            assert ended == [NOT_LEADER]
            assert await first.ask(ApplyDeployment(spec=spec(replicas=2)), "test") == NOT_LEADER
            await until(lambda: first.head == second.head, mock_clock)
            assert first.state == second.state
        check_replay(first, disk)
        nursery.cancel_scope.cancel("the test is over")


async def test_a_damaged_journal_stops_the_kernel() -> None:
    disk = SimulatedDisk()
    async with kernel_on(disk) as kernel:
        await build_fleet(kernel)
    rows = SimulatedJournal(disk.mount())._state.rows
    rows[3] = attrs.evolve(rows[3], record=rows[3].record.replace(b"kernel", b"nobody"))
    with pytest.RaisesGroup(PortFault):
        async with kernel_on(disk):
            pass


async def test_a_lapsed_gateway_frees_what_it_held(mock_clock: MockClock) -> None:
    async with kernel_on(SimulatedDisk()) as kernel, trio.open_nursery() as nursery:
        await build_fleet(kernel)
        await nursery.start(run_janitor, kernel)
        dispatch = KernelDispatch(kernel, SECRET)
        assert isinstance(await dispatch.admit(request()), Admitted)
        while kernel.state.open:
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(0.5)
        (receipt,) = kernel.state.receipts.values()
        assert receipt.settlement.detail == "gateway_lost"
        assert not kernel.observed.held
        nursery.cancel_scope.cancel("the test is over")


async def test_a_settlement_that_the_store_did_not_take_is_settled_when_it_is_back(mock_clock: MockClock) -> None:
    disk = SimulatedDisk()
    async with kernel_on(disk) as kernel, trio.open_nursery() as nursery:
        await build_fleet(kernel)
        dispatch = KernelDispatch(kernel, SECRET)
        assert isinstance(await dispatch.admit(request()), Admitted)
        receipts: list[LedgerReceipt | None] = []

        async def settle() -> None:
            receipts.append(await dispatch.settle(settlement()))

        disk.faults.unavailable = True
        nursery.start_soon(settle)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
        assert not kernel.store_ok
        assert not receipts
        disk.faults.unavailable = False
        while not receipts:
            mock_clock.jump(1)
            await trio.testing.wait_all_tasks_blocked()
        assert isinstance(receipts[0], LedgerReceipt)
        assert not kernel.state.open
        assert not kernel.observed.held


async def test_a_store_that_is_down_at_the_beginning_costs_no_key(mock_clock: MockClock) -> None:
    disk = SimulatedDisk()
    journal = SimulatedJournal(disk.mount())
    kernel = Kernel(journal, journal, SimulatedClock(), POLICY, SEAT)
    began = trio.Event()

    async def run() -> None:
        async with trio.open_nursery() as running:
            await running.start(kernel.run, BEGIN)
            began.set()

    async with trio.open_nursery() as nursery:
        disk.faults.delay_ms = 1_000
        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        # The epoch is taken, and the first append fails.
        disk.faults.full = True
        mock_clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
        assert not began.is_set()
        disk.faults.full, disk.faults.delay_ms = False, 0
        while not began.is_set():
            mock_clock.jump(1)
            await trio.testing.wait_all_tasks_blocked()
        assert kernel.state.cluster == BEGIN.cluster
        assert list(kernel.state.keys.values()) == list(BEGIN.keys)
        check_replay(kernel, disk)
        nursery.cancel_scope.cancel("the test is over")


async def test_an_outage_of_the_store_is_no_silence_of_a_gateway(mock_clock: MockClock) -> None:
    disk = SimulatedDisk()
    async with kernel_on(disk) as kernel, trio.open_nursery() as nursery:
        await build_fleet(kernel)
        await nursery.start(run_janitor, kernel)
        dispatch = KernelDispatch(kernel, SECRET)
        assert isinstance(await dispatch.admit(request()), Admitted)
        nursery.start_soon(run_gateway_session, dispatch, SESSION)
        await trio.testing.wait_all_tasks_blocked()
        disk.faults.unavailable = True
        nursery.start_soon(dispatch.admit, request(2))
        await trio.testing.wait_all_tasks_blocked()
        assert not kernel.store_ok
        for _ in range(2 * POLICY.session_lease_ms // 500):
            mock_clock.jump(0.5)
            await trio.testing.wait_all_tasks_blocked()
        disk.faults.unavailable = False
        for _ in range(8):
            mock_clock.jump(0.5)
            await trio.testing.wait_all_tasks_blocked()
        assert list(kernel.state.open) == [request().workload]
        await kernel.ask(reported(heartbeat(2, report())), "test")
        assert isinstance(await dispatch.admit(request(3)), Admitted)
        nursery.cancel_scope.cancel("the test is over")


async def test_a_kernel_that_stood_still_blames_nobody(mock_clock: MockClock) -> None:
    async with kernel_on(SimulatedDisk()) as kernel, trio.open_nursery() as nursery:
        await build_fleet(kernel)
        await nursery.start(run_janitor, kernel)
        dispatch = KernelDispatch(kernel, SECRET)
        assert isinstance(await dispatch.admit(request()), Admitted)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(3_600)
        await trio.testing.wait_all_tasks_blocked()
        assert kernel.state.open
        assert isinstance(await dispatch.admit(request(2)), Admitted)
        nursery.cancel_scope.cancel("the test is over")
