"""The simulated disk: what a crash takes, and what each fault does."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import trio
import trio.testing

from lunanexa_core.ids import AssignmentId
from lunanexa_core.journal_query import RowQuery
from lunanexa_ports.conformance.journal import lead, read_all, rows_after
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.journal import Appended
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.journal import SimulatedJournal, open_simulated_journal
from lunanexa_simulation.node_store import SimulatedNodeStore, open_simulated_node_store

T = TypeVar("T")


async def unavailable(work: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(PortUnavailable):
        await work()


@pytest.mark.parametrize("keep_unsynced", [False, True])
async def test_power_loss_while_appending(keep_unsynced: bool) -> None:
    """The caller is told nothing, and the whole batch is there or none of it."""
    disk = SimulatedDisk()
    journal = SimulatedJournal(disk.mount())
    head = await lead(journal)
    first = rows_after(head, head.epoch, 3)
    assert await journal.append(head.epoch, head, first) is Appended.DURABLE
    head = await journal.head()
    second = rows_after(head, head.epoch, 5)
    disk.faults.delay_ms = 3_600_000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(unavailable, lambda: journal.append(head.epoch, head, second))
        await trio.testing.wait_all_tasks_blocked()
        assert (await journal.head()) == head
        disk.crash(keep_unsynced=keep_unsynced)
    disk.faults.delay_ms = 0
    await unavailable(journal.head)
    await unavailable(lambda: lead(journal))
    await unavailable(lambda: read_all(journal))
    async with open_simulated_journal(disk) as reopened:
        assert await read_all(reopened) == (first + second if keep_unsynced else first)


async def test_killing_one_process_leaves_the_others() -> None:
    disk = SimulatedDisk()
    killed, other = disk.mount(), SimulatedJournal(disk.mount())
    journal = SimulatedJournal(killed)
    head = await lead(journal)
    rows = rows_after(head, head.epoch, 2)
    disk.faults.delay_ms = 3_600_000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(unavailable, lambda: journal.append(head.epoch, head, rows))
        await trio.testing.wait_all_tasks_blocked()
        killed.kill()
        killed.kill()
    disk.faults.delay_ms = 0
    assert await other.append(head.epoch, head, rows) is Appended.DURABLE


async def test_a_sync_takes_its_time_on_trios_clock(autojump_clock: trio.testing.MockClock) -> None:
    disk = SimulatedDisk()
    disk.faults.delay_ms = 250
    async with open_simulated_node_store(disk) as node:
        before = autojump_clock.current_time()
        with trio.move_on_after(1 / 8):
            await node.put("desired", b"{}")
        assert autojump_clock.current_time() - before == 0.25
        assert await node.get("desired") == b"{}"


async def test_faults_of_the_journal() -> None:
    disk = SimulatedDisk()
    async with open_simulated_journal(disk) as journal:
        head = await lead(journal)
        rows = rows_after(head, head.epoch, 2)
        disk.faults.full = True
        await unavailable(lambda: journal.append(head.epoch, head, rows))
        assert await read_all(journal) == []
        disk.faults.full = False
        disk.faults.unavailable = True
        await unavailable(lambda: journal.append(head.epoch, head, rows))
        await unavailable(journal.head)
        await unavailable(lambda: journal.page(RowQuery(target="thing", limit=1)))
        disk.faults.unavailable = False
        assert await read_all(journal) == []
        disk.faults.unknown_outcomes = 1
        await unavailable(lambda: journal.append(head.epoch, head, rows))
        assert await read_all(journal) == rows
        disk.faults.corrupt = True
        with pytest.raises(PortFault):
            await journal.head()
        with pytest.raises(PortFault):
            async with open_simulated_journal(disk):
                pass


async def test_faults_of_the_node_store() -> None:
    disk = SimulatedDisk()
    async with open_simulated_node_store(disk) as node:
        assignment = AssignmentId("asg_1")
        disk.faults.full = True
        for write in (
            node.next_start_number,
            lambda: node.put("desired", b"{}"),
            lambda: node.put_replica(assignment, b"{}"),
        ):
            await unavailable(write)
        disk.faults.full = False
        assert await node.get("desired") is None
        assert await node.replicas() == {}
        assert await node.next_start_number() == 1
        disk.faults.unknown_outcomes = 1
        await unavailable(node.next_start_number)
        assert await node.next_start_number() == 3
        disk.crash()
        await unavailable(node.replicas)
        await unavailable(lambda: node.get("desired"))
    assert await SimulatedNodeStore(disk.mount()).next_start_number() == 4


async def test_one_disk_holds_both_stores() -> None:
    disk = SimulatedDisk()
    async with open_simulated_journal(disk) as journal, open_simulated_node_store(disk) as node:
        await lead(journal)
        assert await node.next_start_number() == 1
        assert (await journal.head()).epoch == 1
