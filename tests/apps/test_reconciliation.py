"""Reconciliation where the kernel does not answer as it should."""

import trio
from trio.testing import MockClock

from lunanexa_apps.controller.janitor import run_reconciliation
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_core.commands import Command
from lunanexa_core.deployment import Deployment
from lunanexa_core.events import DeploymentApplied
from lunanexa_core.kernel.decide import Answer
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.policy import Policy
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.journal import SimulatedJournal
from lunanexa_simulation.rng import Streams
from tests.core.builders import enrolled_events, spec, state_of


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
    kernel = BrokenKernel(SimulatedJournal(SimulatedDisk().mount()), clock, Policy())
    kernel.state = state_of([*enrolled_events(), DeploymentApplied(Deployment(spec=spec(), generation=1))])
    ids = SimulatedIds(Streams(1).stream("ids"), clock)
    with trio.move_on_after(300):
        await run_reconciliation(kernel, ids)
    assert 10 < kernel.asked < 30
