"""What every archive of the ledger must do, tried on an empty folder."""

import gzip
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import attrs
import trio

from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.ledger_archive import LedgerArchive


@attrs.frozen(kw_only=True)
class Archives:
    """What is tried. ``files`` is all that stands in the folder, temporary files too; ``broken`` can't be written."""

    empty: Callable[[], LedgerArchive]
    files: Callable[[], Mapping[str, bytes]]
    broken: Callable[[], LedgerArchive]


Check: TypeAlias = Callable[[Archives], Awaitable[None]]


async def lines(*data: bytes) -> AsyncIterator[bytes]:
    for line in data:
        await trio.lowlevel.checkpoint()
        yield line


async def broken_lines() -> AsyncIterator[bytes]:
    await trio.lowlevel.checkpoint()
    yield b"one\n"
    raise PortUnavailable("no more lines")


async def check_what_is_kept_is_there(archives: Archives) -> None:
    kept = await archives.empty().keep(3, 7, lines(b"one\n", b"", b"\x00\xfftwo\n" * 1_000))
    data = archives.files()[kept.name]
    assert kept.sha256 == hashlib.sha256(data).hexdigest()
    assert gzip.decompress(data) == b"one\n" + b"\x00\xfftwo\n" * 1_000
    assert kept.name in archives.empty().place(kept.name)


async def check_the_same_rows_are_the_same_file(archives: Archives) -> None:
    first = await archives.empty().keep(3, 7, lines(b"one\n", b"two\n"))
    assert await archives.empty().keep(3, 7, lines(b"one\n", b"two\n")) == first
    assert len(archives.files()) == 1


async def check_another_attempt_takes_the_place_of_the_last(archives: Archives) -> None:
    before = await archives.empty().keep(3, 7, lines(b"before"))
    _ = await archives.empty().keep(8, 9, lines(b"one"))
    shorter = await archives.empty().keep(8, 8, lines(b"two"))
    longer = await archives.empty().keep(30, 99, lines(b"three"))
    assert archives.files().keys() == {before.name, shorter.name, longer.name}
    assert sorted(archives.files()) == [before.name, shorter.name, longer.name]


async def check_a_broken_attempt_leaves_nothing(archives: Archives) -> None:
    kept = await archives.empty().keep(3, 7, lines(b"one\n"))
    for first in (3, 8):
        try:
            _ = await archives.empty().keep(first, 9, broken_lines())
        except PortUnavailable:
            pass
        else:
            raise AssertionError("an archive kept what came to no end")
    assert archives.files().keys() == {kept.name}


async def check_a_cancelled_attempt_leaves_nothing(archives: Archives) -> None:
    with trio.CancelScope() as scope:

        async def cancelled() -> AsyncIterator[bytes]:
            yield b"one\n"
            scope.cancel("tried")
            await trio.lowlevel.checkpoint()

        _ = await archives.empty().keep(3, 7, cancelled())
    assert scope.cancelled_caught
    assert not archives.files()


async def check_a_folder_that_is_out_of_reach(archives: Archives) -> None:
    try:
        _ = await archives.broken().keep(3, 7, lines(b"one\n"))
    except PortUnavailable as error:
        assert str(error), "says what is wrong"  # noqa: PT017  # a suite for any test runner
    else:
        raise AssertionError("it kept a file where it can't")


CHECKS: Final[tuple[Check, ...]] = (
    check_what_is_kept_is_there,
    check_the_same_rows_are_the_same_file,
    check_another_attempt_takes_the_place_of_the_last,
    check_a_broken_attempt_leaves_nothing,
    check_a_cancelled_attempt_leaves_nothing,
    check_a_folder_that_is_out_of_reach,
)
