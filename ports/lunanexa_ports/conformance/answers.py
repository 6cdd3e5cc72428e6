"""What every store of answers must do, tried on an empty one that may be opened several times."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeAlias

import trio

from lunanexa_core.ids import WorkloadId
from lunanexa_ports.answers import ANSWER_OVERHEAD_BYTES, Answer, Answers
from lunanexa_ports.errors import PortUnavailable

OpenAnswers: TypeAlias = Callable[[int], AbstractAsyncContextManager[Answers]]
"""Opens the one store under test with a bound in bytes, as a controller that starts would."""
Check: TypeAlias = Callable[[OpenAnswers], Awaitable[None]]

DEADLINE_S: Final = 30.0
ROOM: Final = 1 << 20
NOW: Final = 1_700_000_000_000
FIRST, SECOND, THIRD = WorkloadId("wl_1"), WorkloadId("wl_2"), WorkloadId("wl_3")


def _answer(size_bytes: int = 100, status: int = 200) -> Answer:
    return Answer(status=status, content_type="application/json", body=b"x" * size_bytes)


async def _put(store: Answers, workload: WorkloadId, answer: Answer, *, for_ms: int = 1_000, now: int = NOW) -> bool:
    return await store.put(workload, answer, now_wall_ms=now, expires_wall_ms=now + for_ms)


async def check_empty(opened: OpenAnswers) -> None:
    async with opened(ROOM) as store:
        assert await store.get(FIRST, NOW) is None
        assert await store.remove_expired(NOW) == 0


async def check_answers_are_kept(opened: OpenAnswers) -> None:
    """Byte for byte, also after the store was opened again."""
    every_byte = Answer(status=200, content_type="text/event-stream; charset=utf-8", body=bytes(range(256)) * 64)
    empty = Answer(status=404, content_type="", body=b"")
    async with opened(ROOM) as store:
        assert await _put(store, FIRST, every_byte)
        assert await _put(store, SECOND, empty)
        assert await store.get(FIRST, NOW) == every_byte
    async with opened(ROOM) as store:
        assert await store.get(FIRST, NOW + 999) == every_byte
        assert await store.get(SECOND, NOW) == empty
        assert await store.get(THIRD, NOW) is None


async def check_the_last_one_counts(opened: OpenAnswers) -> None:
    """An answer that is put again takes the place of the first, in what counts too."""
    async with opened(2 * ANSWER_OVERHEAD_BYTES + 300) as store:
        for size_bytes in (200, 300, 100):
            assert await _put(store, FIRST, _answer(size_bytes))
            assert await store.get(FIRST, NOW) == _answer(size_bytes)
        assert await _put(store, SECOND, _answer(200))


async def check_expiry(opened: OpenAnswers) -> None:
    """An answer is given until its time, not at it; then it is removed, once."""
    async with opened(ROOM) as store:
        assert await _put(store, FIRST, _answer(), for_ms=10)
        assert await _put(store, SECOND, _answer(), for_ms=20)
        assert await store.get(FIRST, NOW + 9) is not None
        assert await store.get(FIRST, NOW + 10) is None
        assert await store.get(SECOND, NOW + 10) is not None
        assert await store.remove_expired(NOW + 10) == 1
        assert await store.remove_expired(NOW + 10) == 0
        assert await store.get(FIRST, NOW) is None
        assert await store.get(SECOND, NOW) is not None


async def check_bound(opened: OpenAnswers) -> None:
    """What does not fit is not put, and hurts nobody; what has expired makes room."""
    async with opened(2 * ANSWER_OVERHEAD_BYTES + 300) as store:
        assert await _put(store, FIRST, _answer(100), for_ms=10)
        assert await _put(store, SECOND, _answer(200))
        assert not await _put(store, THIRD, _answer(0))
        assert not await _put(store, SECOND, _answer(201))
        assert await store.get(FIRST, NOW) == _answer(100)
        assert await store.get(SECOND, NOW) == _answer(200)
        assert await store.get(THIRD, NOW) is None
        assert await _put(store, THIRD, _answer(100), now=NOW + 10)
        assert await store.get(FIRST, NOW + 10) is None
    async with opened(ROOM) as store:
        assert await store.get(THIRD, NOW + 10) == _answer(100)


async def check_cancelled_put_is_done(opened: OpenAnswers) -> None:
    async with opened(ROOM) as store:
        with trio.CancelScope() as scope:
            scope.cancel()
            assert await _put(store, FIRST, _answer())
        assert await store.get(FIRST, NOW) == _answer()


async def check_closed(opened: OpenAnswers) -> None:
    """Closing twice is once, and a closed store refuses instead of hanging."""
    async with opened(ROOM) as store:
        await store.aclose()
        await store.aclose()
        with trio.fail_after(DEADLINE_S):
            try:
                _ = await _put(store, FIRST, _answer())
            except PortUnavailable:
                pass
            else:
                raise AssertionError("a closed store has taken an answer")


CHECKS: Final[tuple[Check, ...]] = (
    check_empty,
    check_answers_are_kept,
    check_the_last_one_counts,
    check_expiry,
    check_bound,
    check_cancelled_put_is_done,
    check_closed,
)
