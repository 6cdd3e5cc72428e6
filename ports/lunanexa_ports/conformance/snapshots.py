"""What every store of snapshots must do, tried on an empty folder that may be opened several times."""

from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.snapshots import Snapshots

OpenSnapshots: TypeAlias = Callable[[], Snapshots]
"""Opens one folder, as each process that uses it would."""


@attrs.frozen
class Folders:
    """What is tried. ``broken`` can neither be read nor written."""

    empty: OpenSnapshots
    broken: OpenSnapshots


Check: TypeAlias = Callable[[Folders], None]


def check_nothing_is_there(folders: Folders) -> None:
    snapshots = folders.empty()
    assert list(snapshots.kept()) == []
    assert snapshots.read(1) is None
    snapshots.drop(1)


def check_kept_is_read(folders: Folders) -> None:
    """Byte for byte, also by whoever opens it next."""
    data = bytes(range(256)) * 1_024
    folders.empty().keep(7, data)
    snapshots = folders.empty()
    assert list(snapshots.kept()) == [7]
    assert snapshots.read(7) == data
    assert snapshots.read(8) is None


def check_the_highest_comes_first(folders: Folders) -> None:
    """By number: 10 is above 9."""
    snapshots = folders.empty()
    sequences = (9, 10, 2**53 - 1, 1)
    for sequence in sequences:
        snapshots.keep(sequence, b"%d" % sequence)
    assert list(snapshots.kept()) == sorted(sequences, reverse=True)
    assert [snapshots.read(sequence) for sequence in sequences] == [b"%d" % sequence for sequence in sequences]


def check_keep_replaces(folders: Folders) -> None:
    snapshots = folders.empty()
    for data in (b"long, and then", b"short", b""):
        snapshots.keep(3, data)
        assert folders.empty().read(3) == data
        assert list(snapshots.kept()) == [3]


def check_dropped_is_gone(folders: Folders) -> None:
    snapshots = folders.empty()
    for sequence in (1, 2, 3):
        snapshots.keep(sequence, b"data")
    snapshots.drop(2)
    snapshots.drop(2)
    assert snapshots.read(2) is None
    assert list(folders.empty().kept()) == [3, 1]


def check_a_broken_folder(folders: Folders) -> None:
    """Each use says so, and nothing of what it was given."""
    snapshots = folders.broken()
    uses: tuple[Callable[[], object], ...] = (
        snapshots.kept,
        lambda: snapshots.read(1),
        lambda: snapshots.keep(1, b"planted"),
        lambda: snapshots.drop(1),
    )
    for use in uses:
        assert "planted" not in _error_of(use)


def _error_of(use: Callable[[], object]) -> str:
    try:
        _ = use()
    except PortUnavailable as error:
        return str(error)
    raise AssertionError("a broken folder was used")


CHECKS: Final[tuple[Check, ...]] = (
    check_nothing_is_there,
    check_kept_is_read,
    check_the_highest_comes_first,
    check_keep_replaces,
    check_dropped_is_gone,
    check_a_broken_folder,
)
