"""What every implementation of the ``children`` port must do."""

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
    """Runs until it is asked to end, then exits 0."""
    stubborn: ChildOrder
    """Does not end when it is asked to."""
    missing: ChildOrder
    """Its program does not exist."""


async def check_children(children: Children, programs: ChildPrograms) -> None:
    """Runs the whole suite. The ``serves`` and ``stubborn`` programs must be deaf to nothing but what they say
    as soon as :meth:`Children.start` returned."""
    with trio.fail_after(LIMIT_S):
        await _exit_status(children, programs.exits_with_7)
        await _terminate(children, programs.serves)
        await _kill(children, programs.stubborn)
        await _wait_is_cancellable(children, programs.serves)
        await _missing_program(children, programs.missing)


async def _exit_status(children: Children, order: ChildOrder) -> None:
    child = await children.start(order)
    assert await child.wait() == 7
    assert await child.wait() == 7, "wait is repeatable"
    child.terminate()
    child.kill()
    assert await child.wait() == 7, "verbs do nothing once it is gone"


async def _terminate(children: Children, order: ChildOrder) -> None:
    first = await children.start(order)
    second = await children.start(order)
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


async def _kill(children: Children, order: ChildOrder) -> None:
    child = await children.start(order)
    child.terminate()
    child.kill()
    assert await child.wait() == -9


async def _wait_is_cancellable(children: Children, order: ChildOrder) -> None:
    child = await children.start(order)
    with trio.CancelScope() as scope:
        scope.cancel()
        await child.wait()
    assert scope.cancelled_caught, "a cancelled wait leaves the child running"
    child.terminate()
    assert await child.wait() == 0


async def _missing_program(children: Children, order: ChildOrder) -> None:
    try:
        await children.start(order)
    except PortFault:
        return
    raise AssertionError("a program that can't be run is a PortFault")
