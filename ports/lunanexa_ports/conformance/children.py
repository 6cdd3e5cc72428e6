"""What every implementation of the ``children`` port must do."""

from collections.abc import Awaitable, Callable

import attrs
import trio

from lunanexa_ports.children import Child, ChildOrder, Children
from lunanexa_ports.errors import PortFault

LIMIT_S = 30


@attrs.frozen(kw_only=True)
class ChildPrograms:
    """Orders that the implementation under test can carry out."""

    exits_with_7: ChildOrder
    """Ends by itself with status 7."""
    serves: ChildOrder
    """Runs until it is asked to end, by either signal, then exits 0."""
    stubborn: ChildOrder
    """Does not end when it is asked to."""
    missing: ChildOrder
    """Its program does not exist."""
    settled: Callable[[Child], Awaitable[None]]
    """Returns when a program has taken its stand towards both signals; a real one needs a moment for that."""


async def check_children(children: Children, programs: ChildPrograms) -> None:
    """Runs the whole suite."""

    async def start(order: ChildOrder) -> Child:
        child = await children.start(order)
        await programs.settled(child)
        return child

    with trio.fail_after(LIMIT_S):
        await _exit_status(await children.start(programs.exits_with_7))
        await _terminate(await start(programs.serves), await start(programs.serves))
        await _interrupt(await start(programs.serves))
        await _kill(await start(programs.stubborn))
        await _wait_is_cancellable(await start(programs.serves))
        await _missing_program(children, programs.missing)


async def _exit_status(child: Child) -> None:
    assert await child.wait() == 7
    assert await child.wait() == 7, "wait is repeatable"
    child.terminate()
    child.interrupt()
    child.kill()
    assert await child.wait() == 7, "verbs do nothing once it is gone"


async def _terminate(first: Child, second: Child) -> None:
    assert first.pid != second.pid
    statuses: list[int] = []

    async def wait(child: Child) -> None:
        statuses.append(await child.wait())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait, first)
        first.terminate()
        first.terminate()
    assert statuses == [0, 0, 0], "many may wait"
    second.terminate()
    assert await second.wait() == 0


async def _interrupt(child: Child) -> None:
    child.interrupt()
    assert await child.wait() == 0


async def _kill(child: Child) -> None:
    child.terminate()
    child.kill()
    assert await child.wait() == -9


async def _wait_is_cancellable(child: Child) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        _ = await child.wait()
    assert scope.cancelled_caught, "a cancelled wait leaves the child running"
    child.terminate()
    assert await child.wait() == 0


async def _missing_program(children: Children, order: ChildOrder) -> None:
    try:
        _ = await children.start(order)
    except PortFault:
        return
    raise AssertionError("a program that can't be run is a PortFault")
