"""The life of one process of ours, and its two ends.

A crash is not a cancellation. First the process's ports die, so that nothing which it still tries gets out;
then its tasks are cancelled, and go in their own time; another process may start at once from the same disk.
"""

from collections.abc import Awaitable, Callable

import trio

from lunanexa_ports.asgi import AsgiApplication, Receive, Scope, Send


class ProcessLife:
    """What a host keeps of one run of a program. ``stop`` asks for an orderly end; ``ended`` says that it came."""

    def __init__(self) -> None:
        self.stop = trio.Event()
        self.ended = trio.Event()
        self.dead = False
        self._scope = trio.CancelScope()

    def kill(self) -> None:
        """Call it when every port of the process is dead."""
        self.dead = True
        self._scope.cancel("the process was killed")

    async def live(self, program: Callable[[], Awaitable[None]]) -> None:
        """Runs the program to its end."""
        try:
            with self._scope:
                await program()
        except* Exception:  # what a killed process raises as its ports fail is nobody's news
            if not self.dead:
                raise
        finally:
            self.ended.set()

    def guard(self, app: AsgiApplication) -> AsgiApplication:
        """``app`` as this process serves it: errors of its handlers reach nobody once it is dead."""

        async def guarded(scope: Scope, receive: Receive, send: Send, /) -> None:
            try:
                await app(scope, receive, send)
            except* Exception:  # as in ``live``
                if not self.dead:
                    raise

        return guarded
