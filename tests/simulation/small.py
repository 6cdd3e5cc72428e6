"""A kernel that serves one replica, with its journal on a simulated disk: what checkers look at, in small."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from lunanexa_apps.controller.kernel import Kernel
from lunanexa_core import commands
from lunanexa_core.commands import Command
from lunanexa_core.kernel.decide import Answer
from lunanexa_core.outcomes import Refusal
from lunanexa_core.workload import Attempt, Settlement
from lunanexa_simulation.checkers import Checkers
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.journal import JournalState, SimulatedJournal
from lunanexa_simulation.sight import Sight
from tests.core import builders

BEGIN: Final = builders.begin(keys=(builders.api_key(requests_per_minute=60, tokens_per_minute=60_000),))


@attrs.define
class Small:
    """One kernel, and the checkers that look at it."""

    kernel: Kernel
    disk: SimulatedDisk
    checkers: Checkers

    @property
    def sight(self) -> Sight:
        return self.checkers.sight

    @property
    def journal(self) -> JournalState:
        return self.disk.state(JournalState)

    async def ask(self, command: Command) -> Answer:
        answer = await self.kernel.ask(command, "test")
        assert not isinstance(answer, Refusal), answer
        return answer


@asynccontextmanager
async def small_world(disk: SimulatedDisk | None = None) -> AsyncIterator[Small]:
    """A cluster with one ready replica; of two admitted workloads one is settled, one holds a slot."""
    disk = SimulatedDisk() if disk is None else disk
    clock = SimulatedClock(mono_ms=builders.NOW.mono_ms, wall_ms=builders.NOW.wall_ms)
    store = SimulatedJournal(disk.mount())
    kernel = Kernel(store, store, clock, builders.POLICY, builders.SEAT)
    sight = Sight(rows=disk.state(JournalState).rows, secrets={"api key": builders.SECRET})
    kernel.listeners.append(sight.grants)
    small = Small(kernel, disk, Checkers(sight))
    async with trio.open_nursery() as nursery:
        await nursery.start(kernel.run, BEGIN)
        sight.kernel = kernel
        for command in _until_served():
            await small.ask(command)
        yield small
        nursery.cancel_scope.cancel("the test is over")


def _until_served() -> list[Command]:
    done = Settlement(
        workload=builders.request(1).workload, outcome=None, attempts=(Attempt(start=builders.START, status=200),)
    )
    return [
        *builders.joining(),
        builders.reported(builders.heartbeat(1)),
        commands.ApplyDeployment(spec=builders.spec()),
        commands.Reconcile((builders.ASSIGNMENT,)),
        builders.reported(builders.heartbeat(2, builders.report())),
        commands.OpenSession(builders.SESSION),
        commands.AdmitWorkload(builders.request(1)),
        commands.AdmitWorkload(builders.request(2)),
        commands.SettleWorkload(done),
    ]
