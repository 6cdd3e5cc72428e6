"""Small files that are their owner's: nobody else may read them, or nobody else may have written them. One way to read
them, with a rule for each kind."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.private_files import FILE_BYTES_MAX

_ROOT: Final = 0
_OTHERS: Final = 0o077
_OTHERS_WRITE: Final = 0o022
_OWNER_ONLY: Final = 0o600


@attrs.frozen(kw_only=True)
class OwnerRule:
    """What a file must be to be read."""

    user: Callable[[], int] | None
    """Whose it must be, if it is not root's; ``None``: whoever's it is, for who writes it is not asked."""
    chown_to: str | None = None
    """Whose a file that is another user's should become; ``None``: that user's."""
    others: int
    """The bits of its mode that must not be set."""
    tighten: bool = False
    """Whether a file with such bits loses them, rather than being refused."""
    with_folder: bool = False
    """Whether its folder must be so too: who writes there can put another file in its place."""
    unreadable: type[PortFault | PortUnavailable] = PortUnavailable
    """What is raised for one that can't be read."""


SECRET: Final = OwnerRule(user=None, others=_OTHERS, tighten=True)
"""Nobody else may read it; if somebody may, it is its owner's alone from then on."""
KEY: Final = OwnerRule(user=os.geteuid, others=_OTHERS)
"""Nobody else may have read it: a key that others could read is refused, for they may have it."""


def word_of(user: int) -> OwnerRule:
    """By which the machine's owner says what may be done there: root's or ``user``'s, and nobody else can have written
    it, nor put it there."""
    return OwnerRule(user=lambda: user, chown_to="root", others=_OTHERS_WRITE, with_folder=True, unreadable=PortFault)


def read_owned_file(path: Path, rule: OwnerRule) -> bytes | None:
    """What is in the file; ``None``: there is none. Raises ``PortFault`` for one that is not by the ``rule``, is no
    regular file or longer than ``FILE_BYTES_MAX``, and what the rule says for one that can't be read."""
    try:
        # Not to wait for the writer of a named pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, rule, error) from error
    try:
        check_owned(path, descriptor, rule)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(path, rule, error) from error
    finally:
        os.close(descriptor)
    if len(data) > FILE_BYTES_MAX:
        raise PortFault(f"{path} is longer than {FILE_BYTES_MAX} bytes, so it is another file: move it away")
    return data


def check_owned(path: Path, descriptor: int, rule: OwnerRule) -> None:
    """Raises ``PortFault`` unless the open file is by the ``rule``; ``OSError``."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise PortFault(f"{path} is no regular file: move it away")
    _check_owner(path, found, rule)
    if found.st_mode & rule.others:
        if not rule.tighten:
            raise _open_to_others(path, rule)
        _tighten(path, descriptor)
    if rule.with_folder:
        _check_folder(path.parent, rule)


def _check_folder(folder: Path, rule: OwnerRule) -> None:
    found = folder.stat()
    _check_owner(folder, found, rule)
    # In a sticky folder nobody removes or renames what is another's.
    if found.st_mode & rule.others and not found.st_mode & stat.S_ISVTX:
        raise _open_to_others(folder, rule)


def _check_owner(path: Path, found: os.stat_result, rule: OwnerRule) -> None:
    if rule.user is None:
        return
    user = rule.user()
    if found.st_uid not in (_ROOT, user):
        run = f"run `chown {rule.chown_to or user} {path}`"
        raise PortFault(f"{path} is another user's ({found.st_uid}): {run} if you trust what it holds")


def _open_to_others(path: Path, rule: OwnerRule) -> PortFault:
    if rule.others & ~_OTHERS_WRITE:
        return PortFault(f"{path} may be read by others: run `chmod 600 {path}`")
    return PortFault(f"{path} may be written by others than its owner: run `chmod go-w {path}`")


def _tighten(path: Path, descriptor: int) -> None:
    try:
        os.fchmod(descriptor, _OWNER_ONLY)
    except OSError as error:
        raise PortFault(
            f"{path} may be read by others, and that can't be changed ({error.strerror}):"
            f" run `chmod 600 {path}` as its owner"
        ) from error


def _unreadable(path: Path, rule: OwnerRule, error: OSError) -> PortFault | PortUnavailable:
    return rule.unreadable(f"{path} can't be read ({error.strerror}): see that it is a file that this user may read")
