"""Idle connections and exchange slots of one origin (host, port, and who must answer there).

Deciding is kept apart from doing: nothing here awaits but the slot itself, so no cancellation can
leave a connection counted twice or lost. The shape follows httpcore's connection pool.
"""

import trio

from lunanexa_adapters.http_client.connection import Connection
from lunanexa_adapters.http_client.security import Security


class OriginPool:
    """At most ``limit`` exchanges run at a time (others wait for a slot, first come first served). Each
    holds one connection and takes an idle one first, so there are never more sockets than slots."""

    def __init__(self, *, limit: int, idle_timeout_s: float) -> None:
        self.slots = trio.Semaphore(limit)  # not CapacityLimiter: one task may hold two exchanges
        self._idle: list[Connection] = []
        self._idle_timeout_s = idle_timeout_s
        self.users = 0
        """Exchanges in progress and waiting: the pool is dropped when nobody uses it and nothing is idle."""

    def take(self, security: Security | None) -> Connection | None:
        """The connection used last, as the likeliest to be alive; dead and too old ones are closed, and those that
        were opened by another certificate, or another trust, than is in force."""
        self.sweep()
        while self._idle:
            connection = self._idle.pop()
            if connection.security == security and not connection.is_stale():
                return connection
            connection.close()
        return None

    def give_back(self, connection: Connection) -> None:
        connection.idle_since = trio.current_time()
        self._idle.append(connection)

    def sweep(self) -> None:
        """Closes what has been idle for too long (the list is in order of that)."""
        oldest = trio.current_time() - self._idle_timeout_s
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.pop(0).close()

    def close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    @property
    def idle_count(self) -> int:
        return len(self._idle)

    @property
    def unused(self) -> bool:
        return self.users == 0 and not self._idle
