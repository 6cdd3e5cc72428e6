"""A few connections for many tasks: each is made when it is needed and used by one task at a time."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import psycopg
import trio

from lunanexa_adapters.postgres.address import PostgresAddress
from lunanexa_adapters.postgres.connection import STORE, TrioConnection, open_connection, port_error
from lunanexa_ports.errors import PortUnavailable

T = TypeVar("T")

PATIENCE_S: Final = 0.3
"""How long :meth:`Pool.repeat` tries again: a restart that a server does at once; beyond it callers are told, who know
better what waits behind them."""
FIRST_PAUSE_S: Final = 0.05
CLOSE_S: Final = 30.0


class Pool:
    """At most ``size`` connections. Overflow: callers wait for their turn, first come first served."""

    def __init__(self, address: PostgresAddress, size: int) -> None:
        self._address = address
        self._size = size
        self._room = trio.Semaphore(size, max_value=size)
        self._idle: list[TrioConnection] = []
        self._closing = False

    async def once(self, work: Callable[[TrioConnection], Awaitable[T]]) -> T:
        """Runs ``work`` on a connection, one try. Raises as the port does; when the connection broke meanwhile, nobody
        knows what the server did."""
        async with self._room:
            return await self._once(work)

    async def repeat(self, work: Callable[[TrioConnection], Awaitable[T]]) -> T:
        """As :meth:`once`, for work that does no harm twice: a lost connection is made again, with growing pauses."""
        async with self._room:
            until, pause_s = trio.current_time() + PATIENCE_S, FIRST_PAUSE_S
            while True:
                try:
                    return await self._once(work)
                except PortUnavailable:
                    if self._closing or trio.current_time() + pause_s > until:
                        raise
                await trio.sleep(pause_s)
                pause_s *= 2

    async def aclose(self) -> None:
        """Lets the work in hand end, refuses what waits, then closes all connections. Idempotent."""
        self._closing = True
        taken = 0
        with trio.move_on_after(CLOSE_S, shield=True):
            while taken < self._size:
                await self._room.acquire()
                taken += 1
        while self._idle:
            self._idle.pop().finish()
        for _ in range(taken):
            self._room.release()

    async def _once(self, work: Callable[[TrioConnection], Awaitable[T]]) -> T:
        connection = await self._take()
        try:
            with trio.fail_after(self._address.answer_timeout_s):
                return await work(connection)
        except (psycopg.Error, trio.TooSlowError) as error:
            raise port_error(error) from error
        finally:
            if connection.usable and not self._closing:
                self._idle.append(connection)
            else:
                connection.finish()

    async def _take(self) -> TrioConnection:
        if self._closing:
            raise PortUnavailable(f"the {STORE} is closed")
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.finish()
        return await open_connection(self._address)
