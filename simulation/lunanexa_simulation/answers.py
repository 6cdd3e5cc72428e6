"""Kept answers on a simulated disk."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from lunanexa_core.ids import WorkloadId
from lunanexa_ports.answers import Answer, Answers
from lunanexa_ports.errors import PortUnavailable
from lunanexa_simulation.disk import Mount, SimulatedDisk


@attrs.define
class AnswersState:
    """What is on the disk: answers with the end of their time."""

    answers: dict[WorkloadId, tuple[int, Answer]] = attrs.Factory(dict)

    def put(self, workload: WorkloadId, answer: Answer, now_wall_ms: int, expires_wall_ms: int, bytes_max: int) -> bool:
        others = {other: kept for other, kept in self.answers.items() if other != workload and kept[0] > now_wall_ms}
        if sum(kept.size_bytes for _, kept in others.values()) + answer.size_bytes > bytes_max:
            return False
        self.answers = others | {workload: (expires_wall_ms, answer)}
        return True

    def remove_expired(self, now_wall_ms: int) -> int:
        left = {workload: kept for workload, kept in self.answers.items() if kept[0] > now_wall_ms}
        removed = len(self.answers) - len(left)
        self.answers = left
        return removed


class SimulatedAnswers(Answers):
    """One process's opening of the store on a disk."""

    def __init__(self, mount: Mount, bytes_max: int) -> None:
        self._mount = mount
        self._bytes_max = bytes_max
        self._closed = False

    @property
    def _state(self) -> AnswersState:
        return self._mount.disk.state(AnswersState)

    async def put(self, workload: WorkloadId, answer: Answer, *, now_wall_ms: int, expires_wall_ms: int) -> bool:
        self._check()
        return await self._mount.write(
            lambda: self._state.put(workload, answer, now_wall_ms, expires_wall_ms, self._bytes_max)
        )

    async def get(self, workload: WorkloadId, now_wall_ms: int) -> Answer | None:
        await trio.sleep(self._mount.disk.faults.delay_ms / 1_000)  # Behind whatever is being written.
        self._check()
        expires_wall_ms, answer = self._state.answers.get(workload, (0, None))
        return answer if expires_wall_ms > now_wall_ms else None

    async def remove_expired(self, now_wall_ms: int) -> int:
        self._check()
        return await self._mount.write(lambda: self._state.remove_expired(now_wall_ms))

    async def aclose(self) -> None:
        self._closed = True
        await trio.lowlevel.checkpoint()

    def _check(self) -> None:
        if self._closed:
            raise PortUnavailable("the simulated store of answers is closed")
        self._mount.check()


@asynccontextmanager
async def open_simulated_answers(disk: SimulatedDisk, bytes_max: int) -> AsyncIterator[SimulatedAnswers]:
    """The store on ``disk``, on a mount of its own. Raises as the port does."""
    mount = disk.mount()
    mount.check()
    store = SimulatedAnswers(mount, bytes_max)
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()
