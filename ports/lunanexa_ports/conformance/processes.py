"""What every process host must do, tried with real programs or simulated ones."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias

import trio

from lunanexa_core.ids import StartId
from lunanexa_ports.processes import LaunchOrder, ManagedProcess, Processes, ProcessExit, SpawnFailed

DEADLINE_S: Final = 60.0


class HostUnderTest(Protocol):
    """One machine and programs on it. Its processes live on when the agent's view of them is replaced."""

    @abstractmethod
    def open(self) -> Processes:
        """The host as an agent sees it that starts now; an earlier one is gone."""

    @abstractmethod
    def working_directory(self) -> str:
        """A directory that is there."""

    @abstractmethod
    def runs(self) -> tuple[str, ...]:
        """Prints ``ready``, then runs until it is terminated."""

    @abstractmethod
    def exits(self, code: int) -> tuple[str, ...]:
        """Prints ``one``, ``two`` and ``three``, each on a line, and exits with ``code``."""

    @abstractmethod
    def stubborn(self) -> tuple[str, ...]:
        """Ignores SIGTERM, then prints ``ready``, and runs until it is killed."""

    @abstractmethod
    def leaves_a_child(self) -> tuple[str, ...]:
        """Starts a child that runs until it is killed, prints ``ready`` and exits with 0."""

    @abstractmethod
    def listens(self, port: int) -> tuple[str, ...]:
        """Listens on loopback ``port``, then prints ``ready``, and runs until it is terminated."""

    @abstractmethod
    def missing(self) -> tuple[str, ...]:
        """A program that is not there."""


Check: TypeAlias = Callable[[HostUnderTest], Awaitable[None]]


def _order(host: HostUnderTest, argv: tuple[str, ...], number: int = 1) -> LaunchOrder:
    return LaunchOrder(
        start=StartId(f"start_{number}"),
        argv=argv,
        environment={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        working_directory=host.working_directory(),
        log_name=f"{number}.log",
    )


async def _printed(processes: Processes, text: str, number: int = 1) -> None:
    while text not in processes.last_lines(f"{number}.log", 10):
        # There is no event to wait for: a log is a file.
        await _look_again()


async def _look_again() -> None:
    await trio.sleep(0.01)


async def _end(process: ManagedProcess) -> None:
    process.kill()
    await process.wait_group_gone()


async def check_a_life(host: HostUnderTest) -> None:
    """Started, recorded, found, terminated, gone, forgotten."""
    processes = host.open()
    order = _order(host, host.runs())
    process = await processes.start(order)
    await _printed(processes, "ready")
    found = processes.adopt(order.start)
    assert found is not None
    assert found.identity == process.identity
    assert list(processes.recorded()) == [order.start]
    resident_mib = process.resident_mib()
    assert resident_mib is None or resident_mib >= 0, resident_mib
    process.terminate()
    assert await process.wait() == await process.wait()
    await process.wait_group_gone()
    assert processes.adopt(order.start) is None
    assert list(processes.recorded()) == [order.start]
    process.terminate()
    process.kill()
    processes.forget(order.start)
    processes.forget(order.start)
    assert list(processes.recorded()) == []


async def check_exit_codes(host: HostUnderTest) -> None:
    """A child's status is told as it was."""
    processes = host.open()
    for number, code in enumerate((0, 3), start=1):
        process = await processes.start(_order(host, host.exits(code), number))
        assert await process.wait() == ProcessExit(code=code)
        await process.wait_group_gone()


async def check_a_signal_is_no_code(host: HostUnderTest) -> None:
    processes = host.open()
    process = await processes.start(_order(host, host.runs()))
    process.kill()
    assert await process.wait() == ProcessExit(signal=9)
    await process.wait_group_gone()


async def check_a_missing_program(host: HostUnderTest) -> None:
    """Fails with a reason, and leaves no record."""
    processes = host.open()
    order = _order(host, host.missing())
    try:
        _ = await processes.start(order)
    except SpawnFailed as error:
        reason = str(error)
    else:
        raise AssertionError("a program that is not there was started")
    assert reason
    assert list(processes.recorded()) == []
    assert processes.adopt(order.start) is None


async def check_one_start_id_has_one_process(host: HostUnderTest) -> None:
    """Starting again finds the one that lives; once it has ended its id is used up."""
    processes = host.open()
    order = _order(host, host.runs())
    first = await processes.start(order)
    second = await processes.start(order)
    assert second.identity == first.identity
    await _end(first)
    try:
        _ = await processes.start(order)
    except SpawnFailed:
        return
    raise AssertionError("a start id was used twice")


async def check_stubborn_processes_are_killed(host: HostUnderTest) -> None:
    processes = host.open()
    process = await processes.start(_order(host, host.stubborn()))
    await _printed(processes, "ready")
    process.terminate()
    with trio.move_on_after(0.2) as patience:
        _ = await process.wait()
    assert patience.cancelled_caught, "a process that ignores SIGTERM ended by it"
    await _end(process)
    assert await process.wait() == ProcessExit(signal=9)


async def check_processes_outlive_the_agent(host: HostUnderTest) -> None:
    """A new agent finds the same process by its record, and may end it."""
    order = _order(host, host.runs())
    before = await host.open().start(order)
    processes = host.open()
    assert list(processes.recorded()) == [order.start]
    process = processes.adopt(order.start)
    assert process is not None
    assert process.identity == before.identity
    process.kill()
    # Where the agent is no longer its parent nobody saw the status.
    assert await process.wait() in (ProcessExit(), ProcessExit(signal=9))
    await process.wait_group_gone()
    assert processes.adopt(order.start) is None


async def check_a_group_is_gone_with_its_last_member(host: HostUnderTest) -> None:
    """The end of the main process is not the end of the group, for a new agent neither."""
    order = _order(host, host.leaves_a_child())
    first = await host.open().start(order)
    assert await first.wait() == ProcessExit(code=0)
    with trio.move_on_after(0.2) as patience:
        await first.wait_group_gone()
    assert patience.cancelled_caught, "a group with a living member was called gone"
    processes = host.open()
    process = processes.adopt(order.start)
    assert process is not None, "the rest of a group was lost"
    _ = await process.wait()
    await _end(process)
    assert processes.adopt(order.start) is None


async def check_many_wait_and_some_give_up(host: HostUnderTest) -> None:
    processes = host.open()
    process = await processes.start(_order(host, host.runs()))
    exits: list[ProcessExit] = []

    async def wait() -> None:
        exits.append(await process.wait())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait)
        with trio.move_on_after(0.01):
            _ = await process.wait()
        await _end(process)
    assert exits == [ProcessExit(signal=9)] * 3


async def check_the_end_of_a_log(host: HostUnderTest) -> None:
    processes = host.open()
    process = await processes.start(_order(host, host.exits(0)))
    await process.wait_group_gone()
    assert processes.last_lines("1.log", 2) == ("two", "three")
    assert processes.last_lines("1.log", 0) == ()
    assert processes.last_lines("none.log", 5) == ()


async def check_what_was_never_started(host: HostUnderTest) -> None:
    processes = host.open()
    unknown = StartId("start_unknown")
    assert processes.adopt(unknown) is None
    processes.forget(unknown)
    assert list(processes.recorded()) == []


async def check_the_owner_of_a_listener(host: HostUnderTest) -> None:
    processes = host.open()
    port = processes.free_port()
    assert processes.owner_of_listener(port) is None
    process = await processes.start(_order(host, host.listens(port)))
    await _printed(processes, "ready")
    assert processes.owner_of_listener(port) == process.identity
    await _end(process)
    assert processes.owner_of_listener(port) is None


async def check_ports_are_not_given_out_twice(host: HostUnderTest) -> None:
    processes = host.open()
    ports = [processes.free_port() for _ in range(20)]
    assert len(set(ports)) == 20
    assert all(1_024 <= port < 65_536 for port in ports)
    await trio.lowlevel.checkpoint()


CHECKS: Final[tuple[Check, ...]] = (
    check_a_life,
    check_exit_codes,
    check_a_signal_is_no_code,
    check_a_missing_program,
    check_one_start_id_has_one_process,
    check_stubborn_processes_are_killed,
    check_processes_outlive_the_agent,
    check_a_group_is_gone_with_its_last_member,
    check_many_wait_and_some_give_up,
    check_the_end_of_a_log,
    check_what_was_never_started,
    check_the_owner_of_a_listener,
    check_ports_are_not_given_out_twice,
)
