"""What the processes of controller and node agent have in common: their logs, and how they end."""

import os
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
import trio

from lunanexa_apps.logging import configure_logging, level_of
from lunanexa_ports.private_files import LockHeld

TEMPORARY: Final = 75
"""sysexits' EX_TEMPFAIL: somebody else runs it now."""
MISCONFIGURED: Final = 78
"""sysexits' EX_CONFIG: another start would fail the same way."""

_log = structlog.get_logger()


def start_logging(log_format: str, *, verbose: bool) -> None:
    """``log_format``: ``auto``, ``human`` or ``json``."""
    configure_logging(level=level_of(os.environ, verbose=verbose), human={"human": True, "json": False}.get(log_format))


def refuse_held(lock: LockHeld) -> int:
    """Tells who runs on the data directory; the exit status."""
    _log.error("data_dir_in_use", holder=lock.holder, fix="stop it, or choose another --data-dir")
    return TEMPORARY


async def follow_supervisor(wait_gone: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
    """Cancels ``scope`` when the supervisor is gone: it would start another process beside this one."""
    await wait_gone()
    _log.info("supervisor_gone")
    scope.cancel("the supervisor is gone")


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The errors in ``group`` and in the groups within it."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
