"""What every pool of workers must do."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import trio

from lunanexa_ports.workers import Workers

MakeWorkers: TypeAlias = Callable[[], Workers]
Check: TypeAlias = Callable[[MakeWorkers], Awaitable[None]]

DEADLINE_S: Final = 30.0


class _OfTheWorkError(Exception):
    pass


async def check_result(make: MakeWorkers) -> None:
    assert await make().run(lambda: sum(range(1_000))) == 499_500


async def check_error_is_raised(make: MakeWorkers) -> None:
    """What the work raised comes out as it is, and the pool goes on."""

    def fail() -> None:
        raise _OfTheWorkError

    workers = make()
    for _ in range(3):
        try:
            await workers.run(fail)
        except _OfTheWorkError:
            continue
        raise AssertionError("the error is lost")
    assert await workers.run(lambda: "on") == "on"


async def check_many_at_once(make: MakeWorkers) -> None:
    """More callers than places are all served."""
    workers = make()
    results: list[int] = []

    async def work(number: int) -> None:
        results.append(await workers.run(lambda: number * number))

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(work, number)
    assert sorted(results) == [number * number for number in range(40)]


async def check_cancelled_before(make: MakeWorkers) -> None:
    """A caller that is cancelled already gets no result."""
    workers = make()
    with trio.CancelScope() as scope:
        scope.cancel()
        await workers.run(lambda: None)
        raise AssertionError("the cancelled caller went on")
    assert scope.cancelled_caught


CHECKS: Final[tuple[Check, ...]] = (
    check_result,
    check_error_is_raised,
    check_many_at_once,
    check_cancelled_before,
)
