"""A Trio loop in a thread of its own, for programs that have none."""

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Generic, TypeVar

import trio

from lunanexa_client.errors import ConnectionFailed, LunaNexaError

T = TypeVar("T")


class Portal:
    """Runs coroutines for threads that are not Trio's. Safe for any number of threads.

    A thread that is interrupted while it waits (Ctrl-C) cancels what it waited for."""

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()
        self._closing = False
        started: Future[trio.lowlevel.TrioToken] = Future()
        # A daemon thread, so that a program which forgot to close it can end.
        self._thread = threading.Thread(target=self._main, args=(started,), name="lunanexa-client", daemon=True)
        self._thread.start()
        self._token = started.result()

    def call(self, function: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """What ``function(*arguments)`` returns or raises. Raises :class:`ConnectionFailed` when this is closed."""
        scope = trio.CancelScope()

        async def job() -> T:
            self._enter(scope)
            try:
                with scope:
                    return await function(*arguments)
            finally:
                self._exit(scope)
            raise ConnectionFailed("this client was closed")

        try:
            return trio.from_thread.run(job, trio_token=self._token)
        except trio.RunFinishedError:
            raise ConnectionFailed("this client is closed") from None
        except KeyboardInterrupt:
            self._soon(scope.cancel)
            raise

    def finish(self, function: Callable[[], Awaitable[None]]) -> None:
        """As :meth:`call`, for clean-up, which a closed portal has done already."""
        if self._thread.is_alive():
            with suppress(ConnectionFailed):
                self.call(function)

    def close(self) -> None:
        """Cancels what is running and ends the thread. Idempotent; from any thread but the loop's."""
        self._soon(self._close_in_loop)
        self._thread.join()

    def spawn(self, function: Callable[[], Awaitable[None]]) -> trio.CancelScope:
        """In the loop only: a task that lives until it returns or the portal is closed. It must not raise."""
        scope = trio.CancelScope()
        self._enter(scope)

        async def run() -> None:
            try:
                with scope:
                    await function()
            finally:
                self._exit(scope)

        self._nursery.start_soon(run)
        return scope

    def _enter(self, scope: trio.CancelScope) -> None:
        if self._closing:
            raise ConnectionFailed("this client is closed")
        self._scopes.add(scope)

    def _exit(self, scope: trio.CancelScope) -> None:
        self._scopes.discard(scope)
        if self._closing and not self._scopes:
            self._idle.set()

    def _soon(self, function: Callable[[], object]) -> None:
        try:
            self._token.run_sync_soon(function)
        except trio.RunFinishedError:
            return

    def _close_in_loop(self) -> None:
        self._closing = True
        for scope in self._scopes:
            scope.cancel()
        if not self._scopes:
            self._idle.set()

    def _main(self, started: "Future[trio.lowlevel.TrioToken]") -> None:
        trio.run(self._serve, started)  # noqa: TID251 - the sync face is its own root: this thread is its loop

    async def _serve(self, started: "Future[trio.lowlevel.TrioToken]") -> None:
        self._idle = trio.Event()
        async with trio.open_nursery() as self._nursery:
            started.set_result(trio.lowlevel.current_trio_token())
            await self._idle.wait()


class Held(Generic[T]):
    """An async context that was entered in a task of its own, which stays with it: its cancel scopes and
    nurseries are bound to that task."""

    def __init__(self, portal: Portal, context: AbstractAsyncContextManager[T]) -> None:
        """Enters ``context``; raises what that raised."""
        self._portal = portal
        self._failure: Exception | None = None
        self.value: T
        portal.call(self._start, context)

    def close(self) -> None:
        """Leaves the context, and returns when it is left. Idempotent."""
        self._portal.finish(self._finish)

    async def _start(self, context: AbstractAsyncContextManager[T]) -> None:
        self._leave, self._ended, entered = trio.Event(), trio.Event(), trio.Event()

        async def stay() -> None:
            try:
                async with context as self.value:
                    entered.set()
                    await self._leave.wait()
            except (LunaNexaError, OSError, ValueError) as error:
                self._failure = error
            finally:
                entered.set()
                self._ended.set()

        scope = self._portal.spawn(stay)
        try:
            await entered.wait()
        except trio.Cancelled:
            scope.cancel()
            raise
        if self._failure is not None:
            raise self._failure

    async def _finish(self) -> None:
        self._leave.set()
        await self._ended.wait()
