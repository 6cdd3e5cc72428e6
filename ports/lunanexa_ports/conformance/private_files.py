"""What every store of private files must do, tried on an empty folder that may be opened several times."""

from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

from lunanexa_ports.errors import PortError
from lunanexa_ports.private_files import FILE_BYTES_MAX, HeldLock, LockHeld, PrivateFiles

OpenPrivateFiles: TypeAlias = Callable[[], PrivateFiles]
"""Opens one folder, as each process that uses it would."""


@attrs.frozen
class Folders:
    """What is tried. ``broken`` can neither be read nor written."""

    empty: OpenPrivateFiles
    broken: OpenPrivateFiles


Check: TypeAlias = Callable[[Folders], None]

NAME: Final = "controller/secrets/api_key"


def check_nothing_is_there(folders: Folders) -> None:
    files = folders.empty()
    assert files.read(NAME) is None
    files.remove(NAME)
    files.remove(NAME)
    assert files.read(NAME) is None


def check_create_keeps_the_first(folders: Folders) -> None:
    first, second = folders.empty(), folders.empty()
    assert first.create(NAME, b"first")
    assert not second.create(NAME, b"second, and longer")
    assert first.read(NAME) == second.read(NAME) == b"first"


def check_replace_is_whole(folders: Folders) -> None:
    """Byte for byte, whatever was there, up to the longest."""
    files = folders.empty()
    every_byte = bytes(range(256)) * (FILE_BYTES_MAX // 256)
    for data in (every_byte, b"", b"short\n"):
        files.replace(NAME, data)
        assert files.read(NAME) == data
        assert folders.empty().read(NAME) == data


def check_names_are_apart(folders: Folders) -> None:
    files = folders.empty()
    names = ("api_key", "controller/api_key", "controller/secrets/api_key", "node/secrets/api_key")
    for name in names:
        files.replace(name, name.encode())
    assert [files.read(name) for name in names] == [name.encode() for name in names]
    assert len({files.place(name) for name in names}) == len(names)
    files.remove("controller/api_key")
    assert [files.read(name) is None for name in names] == [False, True, False, False]


def check_removed_is_free(folders: Folders) -> None:
    files = folders.empty()
    files.replace(NAME, b"old")
    files.remove(NAME)
    assert folders.empty().read(NAME) is None
    assert files.create(NAME, b"new")
    assert files.read(NAME) == b"new"


def check_one_holder_at_a_time(folders: Folders) -> None:
    """Of each lock; also within one process."""
    first, second = folders.empty(), folders.empty()
    held = _taken(first.lock("up.lock", "process 1"))
    assert second.lock("up.lock", "process 2") == LockHeld("process 1")
    assert first.lock("up.lock", "process 1 again") == LockHeld("process 1")
    with _taken(second.lock("node/lock", "process 2")):
        assert first.lock("node/lock", "process 1") == LockHeld("process 2")
    held.release()
    held.release()
    with _taken(second.lock("up.lock", "process 2")):
        held.release()
        assert first.lock("up.lock", "process 1") == LockHeld("process 2")
    _taken(first.lock("up.lock", "process 1")).release()


def check_a_place_tells_the_name(folders: Folders) -> None:
    for files in (folders.empty(), folders.broken()):
        assert files.place(NAME).endswith(NAME)


def check_a_broken_folder(folders: Folders) -> None:
    """Every use says which file it was about, and nothing of what it holds."""
    files = folders.broken()
    uses: tuple[Callable[[], object], ...] = (
        lambda: files.read(NAME),
        lambda: files.create(NAME, b"planted"),
        lambda: files.replace(NAME, b"planted"),
        lambda: files.remove(NAME),
        lambda: files.lock(NAME, "me"),
    )
    for use in uses:
        message = _error_of(use)
        assert files.place(NAME) in message
        assert "planted" not in message


def _error_of(use: Callable[[], object]) -> str:
    try:
        _ = use()
    except PortError as error:
        return str(error)
    raise AssertionError("a broken folder was used")


def _taken(outcome: HeldLock | LockHeld) -> HeldLock:
    assert not isinstance(outcome, LockHeld), outcome
    return outcome


CHECKS: Final[tuple[Check, ...]] = (
    check_nothing_is_there,
    check_create_keeps_the_first,
    check_replace_is_whole,
    check_names_are_apart,
    check_removed_is_free,
    check_one_holder_at_a_time,
    check_a_place_tells_the_name,
    check_a_broken_folder,
)
