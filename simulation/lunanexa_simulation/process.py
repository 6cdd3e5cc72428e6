"""One simulated process: a coroutine function in the place of a program, run as a task of the world's nursery."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from lunanexa_core.ids import StartId
from lunanexa_ports.processes import ProcessExit

if TYPE_CHECKING:
    from lunanexa_simulation.machine import SimulatedHost

SIGTERM: Final = 15
SIGKILL: Final = 9
LINE_CHARACTERS: Final = 400
LOG_LINES: Final = 1_000

Program: TypeAlias = "Callable[[SimulatedProcess], Awaitable[int]]"
"""What a process does. It returns its exit code; SIGTERM ends it unless it said that it handles that itself
(:attr:`SimulatedProcess.handles_terminate`); SIGKILL cancels it."""


class SimulatedProcess:
    """A process as its program sees it."""

    def __init__(self, host: "SimulatedHost", start: StartId, argv: Sequence[str], environment: Mapping[str, str],
                 log_name: str, group: int | None) -> None:  # fmt: skip
        self.argv = tuple(argv)
        self.environment = dict(environment)
        self.handles_terminate = False
        self.terminated = trio.Event()
        self.identity = host.next_identity()
        self.start = start
        self.group = self.identity.pid if group is None else group
        self.exit: ProcessExit | None = None
        self.ended = trio.Event()
        self.hung = False
        self.leaked_mib: Callable[[], int] = lambda: 0
        self.host = host
        self.log_name = log_name
        self._scope = trio.CancelScope()
        self._going_on = trio.Event()

    def print(self, line: str) -> None:
        """One line of output."""
        log = self.host.logs.setdefault(self.log_name, [])
        log.append(line[:LINE_CHARACTERS])
        del log[:-LOG_LINES]

    @contextmanager
    def listening(self, port: int) -> Iterator[None]:
        """The port is this process's as long as the block runs."""
        assert port not in self.host.listeners, f"port {port} is taken"
        self.host.listeners[port] = self.identity
        try:
            yield
        finally:
            if self.host.listeners.get(port) == self.identity:
                del self.host.listeners[port]

    def option(self, name: str) -> str:
        """The word that follows the first ``name`` on the command line."""
        return self.argv[self.argv.index(name) + 1]

    def fork(self, program: Program) -> None:
        """A child in the same group."""
        child = SimulatedProcess(self.host, self.start, self.argv, self.environment, self.log_name, self.group)
        self.host.run(child, program)

    async def while_hung(self) -> None:
        """Returns at once unless the process hangs. What serves requests awaits it before each."""
        while self.hung:
            await self._going_on.wait()

    # --- for faults ---

    def hang(self, *, on: bool = True) -> None:
        """It lives and answers nothing more (or goes on)."""
        self.hung = on
        if on:
            self._going_on = trio.Event()
        else:
            self._going_on.set()

    def crash(self, *, code: int | None = None, signal: int | None = None) -> None:
        """It ends by itself: with ``code``, or by ``signal``."""
        if self.exit is None:
            self.exit = ProcessExit(code=code, signal=signal)
            self._scope.cancel()

    def terminate(self) -> None:
        self.terminated.set()
        if not self.handles_terminate and not self.host.faults.ignore_terminate:
            self.crash(signal=SIGTERM)

    async def play(self, program: Program) -> None:
        code: int | None = None
        with self._scope:
            code = await program(self)
        killed = self.exit
        if killed is not None and self.host.faults.linger_ms:
            await trio.sleep(self.host.faults.linger_ms / 1_000)
        self.exit = killed or ProcessExit(code=code)
        self.ended.set()
        await self.host.release(self)
