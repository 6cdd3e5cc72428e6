"""Reconciliation where the kernel does not answer as it should."""

import attrs
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from lunanexa_apps.controller.janitor import run_reconciliation
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.status import deployment_status
from lunanexa_core.commands import ApplyDeployment, Command
from lunanexa_core.deployment import Deployment
from lunanexa_core.events import DeploymentApplied
from lunanexa_core.ids import BootId, NodeId
from lunanexa_core.kernel.decide import Answer
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.southbound.heartbeat import Heartbeat, RefusedAssignment
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.journal import SimulatedJournal
from lunanexa_simulation.rng import Streams
from tests.core.builders import DEPLOYMENT, SEAT, begin, enrolled_events, joining, reported, spec, state_of
from tests.replayed import check_replay


class BrokenKernel(Kernel):
    """Answers every command as one whose rule failed."""

    asked = 0

    async def ask(self, command: Command, actor: str) -> Answer:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        return Refusal(outcome=Outcome.INTERNAL, message="An internal error.")


async def test_a_refused_reconciliation_is_asked_again_ever_more_seldom(autojump_clock: MockClock) -> None:
    assert trio.current_time() == autojump_clock.current_time()
    clock = SimulatedClock()
    store = SimulatedJournal(SimulatedDisk().mount())
    kernel = BrokenKernel(store, store, clock, Policy(), SEAT)
    kernel.leading = True
    kernel.state = state_of([*enrolled_events(), DeploymentApplied(Deployment(spec=spec(), generation=1))])
    ids = SimulatedIds(Streams(1).stream("ids"), clock)
    with trio.move_on_after(300):
        await run_reconciliation(kernel, ids)
    assert 10 < kernel.asked < 30


class CountingKernel(Kernel):
    """Counts how often somebody begins to look at the fleet."""

    looks = 0

    async def wait_leading(self) -> None:
        await trio.lowlevel.checkpoint()
        self.looks += 1


async def join(kernel: Kernel, numbers: range) -> None:
    for number in numbers:
        for command in joining(NodeId(f"node-{number}")):
            await kernel.ask(command, "test")


async def test_many_changes_at_once_are_looked_at_together_and_the_last_one_too(mock_clock: MockClock) -> None:
    """Time stands but where the test moves it: however the tasks take turns, all changes are within one pause."""
    clock = SimulatedClock()
    disk = SimulatedDisk()
    store = SimulatedJournal(disk.mount())
    kernel = CountingKernel(store, store, clock, Policy(), SEAT)
    async with trio.open_nursery() as nursery:
        await nursery.start(kernel.run, begin())
        await nursery.start(run_reconciliation, kernel, SimulatedIds(Streams(1).stream("ids"), clock))
        await join(kernel, range(1))
        # From here on there is a pause: it is so long a node.
        await wait_all_tasks_blocked()
        mock_clock.jump(1)
        await wait_all_tasks_blocked()
        before = kernel.looks
        await join(kernel, range(1, 200))
        beat = Heartbeat(
            node=NodeId("node-7"), boot=BootId("boot_1"), sequence=1, epoch=1, generation=0, agent_version="0.1.0"
        )
        await kernel.ask(reported(beat), "test")
        await kernel.ask(ApplyDeployment(spec=spec()), "test")
        await wait_all_tasks_blocked()
        assert (kernel.looks, kernel.state.assignments) == (before, {})
        mock_clock.jump(1)
        await wait_all_tasks_blocked()
        assert [one.deployment for one in kernel.state.assignments.values()] == [DEPLOYMENT]
        assert kernel.looks == before + 2, "one that places, one that finds nothing more to do"
        nursery.cancel_scope.cancel("the test is over")
    check_replay(kernel, disk)


async def test_what_a_node_does_not_run_goes_elsewhere_though_no_state_changes(autojump_clock: MockClock) -> None:
    assert trio.current_time() == autojump_clock.current_time()
    clock = SimulatedClock()
    disk = SimulatedDisk()
    store = SimulatedJournal(disk.mount())
    kernel = Kernel(store, store, clock, Policy(), SEAT)
    async with trio.open_nursery() as nursery:
        await nursery.start(kernel.run, begin())
        await nursery.start(run_reconciliation, kernel, SimulatedIds(Streams(1).stream("ids"), clock))
        await join(kernel, range(2))
        await kernel.ask(ApplyDeployment(spec=spec()), "test")
        while not kernel.state.assignments:
            await trio.sleep(0.1)
        await trio.sleep(30)
        (placed,) = kernel.state.assignments.values()
        refused = RefusedAssignment(assignment=placed.assignment, refusal="policy_program")
        beat = Heartbeat(
            node=placed.node,
            boot=BootId("boot_1"),
            sequence=1,
            epoch=1,
            generation=kernel.state.nodes[placed.node].generation,
            agent_version="0.1.0",
        )
        await kernel.ask(reported(beat), "test")
        await trio.sleep(30)
        journal = kernel.head.journal
        await kernel.ask(reported(attrs.evolve(beat, sequence=2, refused=(refused,))), "test")
        assert kernel.head.journal == journal, "a word is no state"
        with trio.fail_after(20):
            while [one.node for one in kernel.state.assignments.values()] in ([], [placed.node]):
                await trio.sleep(0.1)
        status = deployment_status(kernel, kernel.state.deployments[DEPLOYMENT])
        assert status["declined"] == {placed.node: "policy_program"}
        nursery.cancel_scope.cancel("the test is over")
    check_replay(kernel, disk)
