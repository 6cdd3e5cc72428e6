"""The reference engine as a program of a simulated host: its real command line, its real application, and the
faults that the command line may tell it to commit."""

from collections.abc import Callable
from typing import Final

import trio

from lunanexa_apps.engine.app import ReferenceEngine
from lunanexa_apps.engine.command_line import read_options
from lunanexa_apps.engine.faults import FaultKind
from lunanexa_apps.engine.language_model import LanguageModel, read_corpus
from lunanexa_ports.asgi import AsgiApplication, Receive, Scope, Send
from lunanexa_ports.clock import Clock
from lunanexa_simulation.http_client import SimulatedNetwork
from lunanexa_simulation.life import ProcessLife
from lunanexa_simulation.process import Program, SimulatedProcess

BINARY: Final = "/opt/lunanexa/bin/lunanexa-engine"
MODEL: Final = LanguageModel(read_corpus())
"""Trained once a process: it never changes."""
LOG_SECRET: Final = "amber-lantern-4418"
"""Stands in every engine's log, as a payload may; it may be shown nowhere else."""

_USAGE: Final = 2


def engine_program(network: SimulatedNetwork, clock: Clock) -> Program:
    """What runs under :data:`BINARY`."""

    async def program(process: SimulatedProcess) -> int:
        try:
            options = read_options(process.argv[1:], process.environment, "simulated")
        except SystemExit:
            process.print("the command line is wrong")
            return _USAGE
        app = ReferenceEngine(
            options.engine,
            MODEL,
            now_s=lambda: clock.now().wall_ms // 1_000,
            new_id=_numbered(process),
            end_process=lambda status: process.crash(code=status),
        )
        process.leaked_mib = lambda: app.faults.leaked_mib
        at_start = app.faults.of_process(FaultKind.EXIT_AT_START)
        if at_start is not None:
            process.print("told to exit at the start")
            return at_start
        process.handles_terminate = True
        life, served = ProcessLife(), _Served(app, process)
        with process.listening(options.port):
            network.listen(options.host, options.port, life.guard(served))
            process.print(f"serving; {LOG_SECRET}")
            try:
                await process.terminated.wait()
                await trio.sleep((app.faults.of_process(FaultKind.SLOW_STOP) or 0) / 1_000)
                # As the real one: accepts no more, and gives what runs some time.
                network.refuse(options.host, options.port)
                with trio.move_on_after(options.drain_ms / 1_000):
                    await served.wait_idle()
                return 0
            finally:
                life.dead = True
                network.kill(options.host, options.port)

    return program


class _Served(AsgiApplication):
    """The application as its process serves it: not while it hangs, and counted."""

    def __init__(self, app: AsgiApplication, process: SimulatedProcess) -> None:
        self._app = app
        self._process = process
        self._busy = 0
        self._idle = trio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        self._busy += 1
        try:
            await self._process.while_hung()
            await self._app(scope, receive, send)
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Returns when nothing is in progress."""
        while self._busy:
            self._idle = trio.Event()
            await self._idle.wait()


def _numbered(process: SimulatedProcess) -> Callable[[], str]:
    numbers = iter(range(1, 1 << 62))
    return lambda: f"{process.start}-{next(numbers)}"
