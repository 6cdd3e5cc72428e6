"""Driven port: engine processes that outlive the agent, and proof of which is which."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from lunanexa_core.ids import BootId, StartId


@attrs.frozen(kw_only=True)
class ProcessIdentity:
    """A process for certain: a pid may be reused, this triple may not."""

    boot: BootId
    pid: int
    start_ticks: int
    """Field 22 of ``/proc/<pid>/stat``: clock ticks after boot at which it started."""


@attrs.frozen(kw_only=True)
class LaunchOrder:
    """One start. ``log_path`` takes standard output and error (appended, capped by the host)."""

    start: StartId
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """The whole environment; nothing is inherited."""
    working_directory: str
    log_name: str


@attrs.frozen(kw_only=True)
class ProcessExit:
    """How a process ended. Both ``None``: it was not our child, so that nobody saw its status."""

    code: int | None = None
    signal: int | None = None


class SpawnFailed(Exception):
    """The program could not be started; the message says why (no such file, not executable…)."""


class ManagedProcess(Protocol):
    """A process whose identity was proven; every verb acts on that one or on nothing."""

    @property
    @abstractmethod
    def identity(self) -> ProcessIdentity:
        """Proven when this handle was made."""

    @abstractmethod
    async def wait(self) -> ProcessExit:
        """Returns when the process has ended (by pidfd). Repeatable, cancellable, many waiters."""

    @abstractmethod
    def terminate(self) -> None:
        """Asks the whole process group to end (SIGTERM). Nothing happens when it is gone already."""

    @abstractmethod
    def kill(self) -> None:
        """Ends the whole process group (SIGKILL). Nothing happens when it is gone already."""

    @abstractmethod
    async def wait_group_gone(self) -> None:
        """Returns when no process of the group is left: a stop is finished then, not when the signal was sent."""

    @abstractmethod
    def resident_mib(self) -> int | None:
        """Resident memory of the group, ``None`` when it can't be read."""


class Processes(Protocol):
    """Starts processes and finds them again."""

    @abstractmethod
    async def start(self, order: LaunchOrder) -> ManagedProcess:
        """Starts ``order`` in a process group of its own through a launcher that records its own identity
        durably under the start id *before* it becomes the engine, so that there is no gap between the fork
        and the record. At most one live process a start id. Raises :class:`SpawnFailed`."""

    @abstractmethod
    def adopt(self, start: StartId) -> ManagedProcess | None:
        """The live process that was recorded under ``start``, if its identity still holds, or what is left
        of its group when the process itself has ended; ``None`` when nothing is, when it never started (then
        it never will: its record is revoked and gone), or when its pid belongs to a stranger now (who is left
        alone)."""

    @abstractmethod
    def recorded(self) -> Sequence[StartId]:
        """All start ids with a record, live or not."""

    @abstractmethod
    def forget(self, start: StartId) -> None:
        """Removes the record of a start whose group is gone. Idempotent."""

    @abstractmethod
    def last_lines(self, log_name: str, limit: int) -> tuple[str, ...]:
        """The end of a log file, at most ``limit`` lines of 400 characters; empty when there is none."""

    @abstractmethod
    def owner_of_listener(self, port: int) -> ProcessIdentity | None:
        """The process that holds the listening TCP socket on ``127.0.0.1:port`` (or on all addresses);
        ``None`` when there is none or it can't be seen."""

    @abstractmethod
    def free_port(self) -> int:
        """A loopback TCP port that was free at this moment and was not given out lately."""
