"""What every adapter of replays must do, tried on a store whose states are known."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import attrs
import trio

from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.replays import Replays
from lunanexa_ports.snapshots import Snapshots

DEADLINE_S: Final = 120.0


@attrs.frozen(kw_only=True)
class Known:
    """A store, what its replays must come to, and the folder that they keep snapshots in, empty at first."""

    replays: Replays
    snapshots: Snapshots
    digests: Mapping[int, str]
    """Of the state as of some rows, in their order."""
    carries: Mapping[int, bytes]
    """What pruning up to the same rows carries on."""
    last: int
    damaged: Replays
    """Of the same store, with an earlier row damaged than any of those."""


Check: TypeAlias = Callable[[Known], Awaitable[None]]


async def check_the_same_state_is_kept(known: Known) -> None:
    """One after another, each from the one before it."""
    for sequence, digest in known.digests.items():
        assert await known.replays.snapshot(sequence, digest)
        assert sequence in known.snapshots.kept()


async def check_again_is_the_same(known: Known) -> None:
    """From a snapshot of that row itself, to the same bytes."""
    sequence, digest = next(iter(known.digests.items()))
    assert await known.replays.snapshot(sequence, digest)
    first = known.snapshots.read(sequence)
    assert await known.replays.snapshot(sequence, digest)
    assert known.snapshots.read(sequence) == first


async def check_another_state_is_not_kept(known: Known) -> None:
    for sequence in known.digests:
        assert not await known.replays.snapshot(sequence, "0" * 64)
    assert list(known.snapshots.kept()) == []


async def check_a_spoilt_snapshot_is_done_without(known: Known) -> None:
    for sequence, digest in known.digests.items():
        known.snapshots.keep(sequence - 1, b"spoilt")
        assert await known.replays.snapshot(sequence, digest)


async def check_carries(known: Known) -> None:
    """With snapshots and without; none is made for it."""
    first, *_, last = known.carries
    assert await known.replays.carry(first) == known.carries[first]
    assert list(known.snapshots.kept()) == []
    assert await known.replays.snapshot(first, known.digests[first])
    assert await known.replays.carry(last) == known.carries[last]


async def check_rows_that_are_not_there(known: Known) -> None:
    """They may still come."""
    for ask in (lambda: known.replays.snapshot(known.last + 1, "0" * 64), lambda: known.replays.carry(known.last + 1)):
        assert await _raised(ask) is PortUnavailable
    assert list(known.snapshots.kept()) == []


async def check_damaged_rows(known: Known) -> None:
    sequence, digest = next(iter(known.digests.items()))
    assert await _raised(lambda: known.damaged.snapshot(sequence, digest)) is PortFault
    assert await _raised(lambda: known.damaged.carry(sequence)) is PortFault
    assert list(known.snapshots.kept()) == []


async def check_several_at_once(known: Known) -> None:
    same: list[bool] = []

    async def ask(sequence: int, digest: str) -> None:
        same.append(await known.replays.snapshot(sequence, digest))

    async with trio.open_nursery() as nursery:
        for sequence, digest in known.digests.items():
            nursery.start_soon(ask, sequence, digest)
    assert same == [True] * len(known.digests)


async def check_cancelled(known: Known) -> None:
    """It ends, and nothing of it is in the way of the next."""
    sequence, digest = next(iter(known.digests.items()))
    with trio.move_on_after(0.05):
        while True:
            _ = await known.replays.snapshot(sequence, digest)
            await trio.lowlevel.checkpoint()
    assert await known.replays.snapshot(sequence, digest)


CHECKS: Final[tuple[Check, ...]] = (
    check_the_same_state_is_kept,
    check_again_is_the_same,
    check_another_state_is_not_kept,
    check_a_spoilt_snapshot_is_done_without,
    check_carries,
    check_rows_that_are_not_there,
    check_damaged_rows,
    check_several_at_once,
    check_cancelled,
)


async def _raised(ask: Callable[[], Awaitable[object]]) -> type[Exception]:
    try:
        _ = await ask()
    except (PortFault, PortUnavailable) as error:
        return type(error)
    raise AssertionError("nothing was raised")
