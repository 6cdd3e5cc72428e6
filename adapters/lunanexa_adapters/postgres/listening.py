"""Notifications of one database: whoever changes the journal or its lease says so, and who waits for that hears it.

https://www.postgresql.org/docs/current/sql-notify.html. They save waiting, and nothing stands on them: one that is lost
costs its listener the rest of its wait.
"""

from typing import Final

import psycopg
import trio

from lunanexa_adapters.postgres.address import PostgresAddress
from lunanexa_adapters.postgres.connection import STORE, TrioConnection, open_connection, port_error
from lunanexa_ports.errors import PortUnavailable

_CHANNEL: Final = "lunanexa"
NOTIFY: Final = f"pg_notify('{_CHANNEL}', '')"
"""For the ``RETURNING`` of an update: told when that is durable, and not at all when it changed nothing."""

_FIRST_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0


class Listener:
    """One connection that only listens. What is said between two waits stays in its socket.

    Whoever does not wait any more calls :meth:`pause`: the server keeps for all what one listener does not take.
    """

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._connection: TrioConnection | None = None
        self._turn = trio.Lock()
        self._closed = False

    async def wait(self, within_s: float) -> None:
        """Until something was said since the last wait, or may have been while nobody listened; ``within_s`` at most. A
        connection that is lost is made again. One task at a time; others wait for their turn."""
        if self._closed:
            raise PortUnavailable(f"the {STORE} is closed")
        pause_s = _FIRST_PAUSE_S
        with trio.move_on_after(within_s):
            async with self._turn:
                while True:
                    connection = self._connection
                    try:
                        if connection is None:
                            await self._listen()
                        else:
                            await _hear(connection)
                    except PortUnavailable:
                        if connection is not self._connection:
                            return  # Paused or closed while it waited.
                        self.pause()
                    else:
                        return
                    await trio.sleep(pause_s)
                    pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    def close(self) -> None:
        """Hangs up for good. Idempotent."""
        self._closed = True
        self.pause()

    def pause(self) -> None:
        """Hangs up; the next wait listens again. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.closed:
            trio.lowlevel.notify_closing(connection.pgconn.socket)
            connection.finish()

    async def _listen(self) -> None:
        connection = await open_connection(self._address)
        try:
            with trio.fail_after(self._address.answer_timeout_s):
                await connection.execute(f"LISTEN {_CHANNEL}")
        except (psycopg.Error, trio.TooSlowError) as error:
            connection.finish()
            raise port_error(error) from error
        except BaseException:
            connection.finish()
            raise
        self._connection = connection
        if self._closed:
            self.pause()


async def _hear(connection: TrioConnection) -> None:
    try:
        while True:
            # Before waiting for the socket: it is not readable for what libpq has read already.
            connection.pgconn.consume_input()
            heard = False
            while connection.pgconn.notifies() is not None:
                heard = True
            if heard:
                await trio.lowlevel.checkpoint()
                return
            await trio.lowlevel.wait_readable(connection.pgconn.socket)
    except (psycopg.Error, OSError, trio.ClosedResourceError) as error:
        raise PortUnavailable("the connection that listens is lost") from error
