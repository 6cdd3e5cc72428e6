"""Starts engines through the launcher, and finds those of an earlier agent again."""

import fcntl
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import trio

from lunanexa_adapters.processes import launcher
from lunanexa_adapters.processes.group import START_VARIABLE, ProcessGroup
from lunanexa_adapters.processes.identity import boot_id, read_stat
from lunanexa_adapters.processes.intents import Intents
from lunanexa_adapters.processes.logs import EngineLogs
from lunanexa_adapters.processes.sockets import FreePorts, owner_of_listener
from lunanexa_core.ids import StartId
from lunanexa_ports.errors import PortError
from lunanexa_ports.processes import (
    LaunchOrder,
    ManagedProcess,
    Processes,
    ProcessExit,
    ProcessIdentity,
    SpawnFailed,
)

LOG_CAP_BYTES: Final = 16 << 20
_OUT_OF_THE_WAY: Final = 10
"""Descriptors below are named in the spawn's file actions."""
_LAUNCHER: Final = str(Path(launcher.__file__))


class LinuxProcess(ManagedProcess):
    """A start that was proven. Of its main process it holds a pidfd, as long as that one was not reaped."""

    def __init__(self, identity: ProcessIdentity, start: StartId, pidfd: int | None) -> None:
        self._identity = identity
        self._pidfd = pidfd
        self._exit = ProcessExit() if pidfd is None else None
        self.group = ProcessGroup(identity, start)

    @property
    def identity(self) -> ProcessIdentity:
        return self._identity

    async def wait(self) -> ProcessExit:
        while self._exit is None:
            assert self._pidfd is not None
            # A descriptor may be waited for by one task only; each waiter has its own.
            own = os.dup(self._pidfd)
            try:
                await trio.lowlevel.wait_readable(own)
            finally:
                os.close(own)
            self._collect()
        await trio.lowlevel.checkpoint()
        return self._exit

    def _collect(self) -> None:
        if self._exit is not None or self._pidfd is None:
            return
        # While its number is still held by the ended process, look who else is in its group.
        self.group.members()
        try:
            status = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            self._exit = ProcessExit()
        else:
            if status is None:
                return
            code, number = status.si_status, status.si_status
            ended = status.si_code == os.CLD_EXITED
            self._exit = ProcessExit(code=code) if ended else ProcessExit(signal=number)
        os.close(self._pidfd)
        self._pidfd = None

    def give_up(self) -> bool:
        """Has nothing more to do with the process: whether nothing is left to reap. A child of ours that still
        lives is a launcher that became no engine, and is ended."""
        self._collect()
        if self._pidfd is not None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        return self._pidfd is None

    def terminate(self) -> None:
        self.group.signal(signal.SIGTERM)

    def kill(self) -> None:
        self.group.signal(signal.SIGKILL)

    async def wait_group_gone(self) -> None:
        await self.wait()
        await self.group.wait_gone()

    def resident_mib(self) -> int | None:
        return self.group.resident_mib()


class LinuxProcesses(Processes):
    """The process host. Its directories hold one intent a start, and the engines' logs."""

    def __init__(self, *, intents: Path, logs: Path, log_cap_bytes: int = LOG_CAP_BYTES) -> None:
        self._intents = Intents(intents)
        self.logs = EngineLogs(logs, log_cap_bytes)
        self._ports = FreePorts()
        self._handles: dict[StartId, LinuxProcess] = {}
        self._given_up: list[LinuxProcess] = []
        """Launchers of starts that never were: ours to reap once they have ended."""

    async def start(self, order: LaunchOrder) -> ManagedProcess:
        if not self._intents.create(order.start):
            running = self.adopt(order.start)
            if running is None:
                raise SpawnFailed("the start id was used before")
            return running
        try:
            return await self._launch(order)
        except (SpawnFailed, PortError):
            self._intents.remove(order.start)
            raise

    async def _launch(self, order: LaunchOrder) -> LinuxProcess:
        """Spawns the launcher and waits until it has become the engine, or says why it can't. When that is
        cancelled, :meth:`adopt` tells which."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        async with trio.lowlevel.FdStream(read_end) as status:
            try:
                pid = self._spawn(order, write_end)
            finally:
                os.close(write_end)
            # Not reaped yet, so that the number is still its own.
            pidfd = os.pidfd_open(pid)
            stat = read_stat(pid)
            assert stat is not None
            identity = ProcessIdentity(boot=boot_id(), pid=pid, start_ticks=stat.start_ticks)
            process = LinuxProcess(identity, order.start, pidfd)
            self._handles[order.start] = process
            problem = b""
            while data := await status.receive_some():
                problem += data
        try:
            if not problem and self._intents.identity(order.start) != identity:
                problem = b"the launcher died"
        except PortError as error:
            problem = str(error).encode()
        if problem:
            process.kill()
            await process.wait()
            del self._handles[order.start]
            raise SpawnFailed(f"{order.argv[0]}: {problem.decode(errors='replace')}")
        return process

    def _spawn(self, order: LaunchOrder, status: int) -> int:
        keep_lc_ctype = "yes" if "LC_CTYPE" in order.environment else "no"
        command = (
            *(sys.executable, "-I", "-S", "-E", _LAUNCHER),
            *(str(self._intents.path(order.start)), order.start, order.working_directory, keep_lc_ctype),
            *order.argv,
        )
        environment = {**order.environment, START_VARIABLE: order.start}
        log = self.logs.open(order.log_name)
        try:
            return _spawn(command, environment, log, status)
        except (OSError, ValueError) as error:
            raise SpawnFailed(f"{order.argv[0]}: {error}") from error
        finally:
            os.close(log)

    def adopt(self, start: StartId) -> ManagedProcess | None:
        identity = self._intents.identity(start)
        if identity is None:
            self._give_up(start)
            return None
        if identity.boot != boot_id():
            return None
        process = self._handles.get(start)
        if process is None:
            process = LinuxProcess(identity, start, _open_proven(identity))
            self._handles[start] = process
        return process if process.group.members() else None

    def _give_up(self, start: StartId) -> None:
        process = self._handles.pop(start, None)
        if process is not None:
            self._given_up.append(process)
            self._reap()

    def _reap(self) -> None:
        self._given_up = [one for one in self._given_up if not one.give_up()]

    def recorded(self) -> Sequence[StartId]:
        # Asked at every look of the agent, so that what is given up is reaped soon after its end.
        self._reap()
        return self._intents.recorded()

    def forget(self, start: StartId) -> None:
        self._give_up(start)
        self._intents.remove(start)

    def last_lines(self, log_name: str, limit: int) -> tuple[str, ...]:
        return self.logs.last_lines(log_name, limit)

    def owner_of_listener(self, port: int) -> ProcessIdentity | None:
        return owner_of_listener(port)

    def free_port(self) -> int:
        return self._ports.take()


def _open_proven(identity: ProcessIdentity) -> int | None:
    """A pidfd of the main process, ``None`` when it is gone or the number is another's."""
    try:
        pidfd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    stat = read_stat(identity.pid)
    if stat is not None and stat.start_ticks == identity.start_ticks:
        return pidfd
    os.close(pidfd)
    return None


def _spawn(command: Sequence[str], environment: Mapping[str, str], log: int, status: int) -> int:
    """Not subprocess: an engine outlives its agent, which therefore is no child to wait for at every exit."""
    high_log = fcntl.fcntl(log, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
    high_status = fcntl.fcntl(status, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
    try:
        return os.posix_spawn(
            command[0],
            list(command),
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, high_log, 1),
                (os.POSIX_SPAWN_DUP2, high_log, 2),
                (os.POSIX_SPAWN_DUP2, high_status, launcher.STATUS_FD),
            ],
        )
    finally:
        os.close(high_log)
        os.close(high_status)
