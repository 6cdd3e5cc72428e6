"""A simulated disk: what survives the death of the process, or of the machine, that writes to it.

A write is a transaction, whole or absent: a torn last one fails its checksum and is absent, as in
SQLite's WAL. It is durable once synced, which takes time; until then a crash may lose it.
"""

from collections.abc import Callable
from typing import TypeVar

import attrs
import trio

from lunanexa_ports.errors import PortFault, PortUnavailable

T = TypeVar("T")


@attrs.define(kw_only=True)
class DiskFaults:
    """Switches of a fault plan, read at each use of the disk."""

    unavailable: bool = False
    """Neither reads nor writes: ``PortUnavailable``."""
    full: bool = False
    """No writes: ``PortUnavailable``, nothing written."""
    corrupt: bool = False
    """Neither reads nor writes: ``PortFault``."""
    unknown_outcomes: int = 0
    """So many of the next writes become durable and raise ``PortUnavailable`` all the same."""
    delay_ms: int = 0
    """How long a sync takes, on Trio's clock."""


class SimulatedDisk:
    """Durable state of one simulated machine (or of a database that several reach). It outlives the
    processes, which reach it by a :class:`Mount` each."""

    def __init__(self) -> None:
        self.faults = DiskFaults()
        self._turn = trio.Lock()
        self._states: dict[type[object], object] = {}
        self._mounts: list[Mount] = []

    def mount(self) -> "Mount":
        """A way to the disk for one more process."""
        self._mounts = [mount for mount in self._mounts if mount.alive]
        mount = Mount(self)
        self._mounts.append(mount)
        return mount

    def crash(self, *, keep_unsynced: bool = False) -> None:
        """Power loss: every mount is dead. The write that was not synced yet is lost, or had reached the
        disk by chance (``keep_unsynced``); nobody was told that it was durable."""
        for mount in self._mounts:
            mount.kill(keep_unsynced=keep_unsynced)

    def state(self, kind: type[T]) -> T:
        """The durable state of one kind of store, empty at first. Only :meth:`Mount.write` may change it."""
        found = self._states.get(kind)
        if not isinstance(found, kind):
            found = self._states[kind] = kind()
        return found

    async def write(self, mount: "Mount", change: Callable[[], T]) -> T:
        """See :meth:`Mount.write`; writes of all mounts go one after another."""
        with trio.CancelScope(shield=True):
            async with self._turn:
                mount.check()
                if self.faults.full:
                    raise PortUnavailable("the simulated disk is full")
                await mount.sync(change, self.faults.delay_ms)
                result = change()
                if self.faults.unknown_outcomes > 0:
                    self.faults.unknown_outcomes -= 1
                    raise PortUnavailable("the simulated disk did not answer in time")
        return result


class Mount:
    """One process's way to a disk, until it dies."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.cut = False
        """The way is cut: the process sees the disk as ``unavailable``, others do not."""
        self._dead = trio.Event()
        self._unsynced: Callable[[], object] | None = None

    @property
    def alive(self) -> bool:
        return not self._dead.is_set()

    def kill(self, *, keep_unsynced: bool = False) -> None:
        """The process is killed, and nothing it still tries gets out. Its write that was not synced yet is
        lost, or became durable without anybody being told (``keep_unsynced``). Idempotent."""
        self._dead.set()
        unsynced, self._unsynced = self._unsynced, None
        if unsynced is not None and keep_unsynced:
            unsynced()

    def check(self) -> None:
        """Raises what any use of the disk would raise now."""
        if not self.alive:
            raise PortUnavailable("the simulated process is dead")
        if self.disk.faults.corrupt:
            raise PortFault("the simulated disk is corrupt")
        if self.disk.faults.unavailable or self.cut:
            raise PortUnavailable("the simulated disk is not there")

    async def write(self, change: Callable[[], T]) -> T:
        """Runs ``change`` on the durable state when it is synced, or not at all, and returns what it does.
        ``change`` decides before it changes anything. Cancellation does not interrupt it."""
        return await self.disk.write(self, change)

    async def sync(self, change: Callable[[], object], delay_ms: int) -> None:
        """Waits until the sync is over. Raises when the process dies first."""
        self._unsynced = change
        with trio.move_on_after(delay_ms / 1_000):
            await self._dead.wait()
        if not self.alive:
            raise PortUnavailable("the simulated process died while it wrote")
        self._unsynced = None
