"""The processes of one start: its session and process group, found by scanning, proven, then signalled singly.

A signal to a group by number could reach a stranger once the number was reused. So each member is opened as a
pidfd, looked at again, and signalled through it.
"""

import os
import signal
from collections.abc import Sequence
from typing import Final

import trio

from lunanexa_adapters.processes.identity import PROC, ProcessStat, all_stats, read_stat
from lunanexa_core.ids import StartId
from lunanexa_ports.processes import ProcessIdentity

START_VARIABLE: Final = "LUNANEXA_START_ID"
"""In the environment of each engine: what proves an orphan of it when its main process is gone."""
_KILL_ROUNDS: Final = 8
_LOOK_AGAIN_S: Final = 1.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class ProcessGroup:
    """All processes that share session or group with the main process of a start."""

    def __init__(self, identity: ProcessIdentity, start: StartId) -> None:
        self._identity = identity
        self._marker = f"{START_VARIABLE}={start}".encode()
        self._known: set[tuple[int, int]] = {(identity.pid, identity.start_ticks)}

    def members(self) -> Sequence[ProcessStat]:
        """Those that live and are proven to be ours; ended ones that nobody reaped yet hold nothing."""
        number = self._identity.pid
        found = [stat for stat in all_stats() if number in (stat.group, stat.session)]
        if not any(self._proves(stat) for stat in found):
            return ()
        # The kernel gives no number away that still names a group: with one of ours, all are ours.
        self._known = {(stat.pid, stat.start_ticks) for stat in found}
        return [stat for stat in found if not stat.ended]

    def _proves(self, stat: ProcessStat) -> bool:
        if (stat.pid, stat.start_ticks) in self._known:
            return True
        try:
            return self._marker in (PROC / str(stat.pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return False

    def signal(self, number: signal.Signals) -> None:
        """Signals every member; for SIGKILL again until none is left, as members may fork meanwhile."""
        for _ in range(_KILL_ROUNDS if number is signal.SIGKILL else 1):
            members = self.members()
            for member in members:
                _signal(member, number)
            if not members:
                return

    async def wait_gone(self) -> None:
        """Returns when no member is left, seen twice: a scan may miss one that was forked during it."""
        empty = 0
        while empty < 2:
            members = self.members()
            if members:
                empty = 0
                # Not for ever: a member may leave the group without ending.
                with trio.move_on_after(_LOOK_AGAIN_S):
                    await _wait_ended(members[0])
            else:
                empty += 1
                await trio.lowlevel.checkpoint()

    def resident_mib(self) -> int | None:
        pages = [count for member in self.members() if (count := _resident_pages(member.pid)) is not None]
        return sum(pages) * _PAGE_BYTES >> 20 if pages else None


def _same(member: ProcessStat) -> bool:
    now = read_stat(member.pid)
    return now is not None and now.start_ticks == member.start_ticks


def _signal(member: ProcessStat, number: signal.Signals) -> None:
    try:
        descriptor = os.pidfd_open(member.pid)
    except ProcessLookupError:
        return
    try:
        # The descriptor holds whoever had the pid when it was opened: ours only if it still is the same.
        if _same(member):
            signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        return
    finally:
        os.close(descriptor)


async def _wait_ended(member: ProcessStat) -> None:
    try:
        descriptor = os.pidfd_open(member.pid)
    except ProcessLookupError:
        await trio.lowlevel.checkpoint()
        return
    try:
        if _same(member):
            await trio.lowlevel.wait_readable(descriptor)
        else:
            await trio.lowlevel.checkpoint()
    finally:
        os.close(descriptor)


def _resident_pages(pid: int) -> int | None:
    try:
        return int((PROC / str(pid) / "statm").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return None
