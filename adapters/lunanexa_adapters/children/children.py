"""Child processes that end with their supervisor, however it ends.

All children inherit the read end of one pipe whose write end only the supervisor has: when the supervisor
is gone, killed without a word included, the kernel closes it and every child reads the end of file. A
parent-death signal would not do, because it follows the *thread* that started the child.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import trio

from lunanexa_ports.children import SUPERVISOR_FD, Child, ChildOrder, Children
from lunanexa_ports.errors import PortFault


class LinuxChild(Child):
    """A child and its process group, whose id is the child's pid."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        return await self._process.wait()

    def terminate(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()

    def interrupt(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        # Once the child was reaped its number may belong to a stranger, so that its group is left alone.
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)


class LinuxChildren(Children):
    """Use it as a context manager: leaving it closes the pipe, which ends the children that are left."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._write_end)
        os.close(self._read_end)

    async def start(self, order: ChildOrder) -> Child:
        try:
            with _output(order.output) as output:
                process = await trio.lowlevel.open_process(
                    list(order.argv),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**order.environment, SUPERVISOR_FD: str(self._read_end)},
                    pass_fds=(self._read_end,),
                    process_group=0,
                )
        except (OSError, ValueError) as error:
            raise PortFault(f"{order.name}: {order.argv[0]} can't be run: {error}") from error
        return LinuxChild(process)


@contextmanager
def _output(path: str | None) -> Iterator[int | None]:
    """The open file, for this user alone; ``None``: what this process has."""
    if path is None:
        yield None
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
