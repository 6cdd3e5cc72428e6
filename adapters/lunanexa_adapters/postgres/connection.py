"""psycopg driven by Trio: its generators say what they wait for, and Trio waits for it, without a thread.

psycopg's own asynchronous connection stands on asyncio in two places only: where it waits for its socket and
where it keeps a second task out. Both are replaced here, and so is connecting.
"""

import select
from collections.abc import Generator
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
import trio
from psycopg._conninfo_attempts import conninfo_attempts
from psycopg._enums import Ready, Wait
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGconn
from psycopg.rows import TupleRow

from lunanexa_adapters.postgres.address import PostgresAddress
from lunanexa_ports.errors import PortError, PortFault, PortUnavailable

R = TypeVar("R")

STORE: Final = "journal"
MEND: Final = "restore a backup"
_LIMITS: Final = """SELECT
    set_config('statement_timeout', %(limit)s, false),
    set_config('lock_timeout', %(limit)s, false),
    set_config('idle_in_transaction_session_timeout', %(limit)s, false),
    CASE WHEN current_setting('server_version_num')::integer >= 170000
        THEN set_config('transaction_timeout', (%(limit)s::integer * 2)::text, false) END"""
# A setting that the session itself has made is not changed by a reload of the server's configuration: as durable as
# it is found, so durable it stays. The network's limits are for what we send back to us: a server process that waits
# for a machine that is gone, or stopped, would keep the notifications of everybody.
_SESSION: Final = """SELECT
    set_config('synchronous_commit', current_setting('synchronous_commit'), false),
    current_setting('fsync'),
    pg_is_in_recovery(),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('tcp_user_timeout', %(unanswered)s, false),
    set_config('tcp_keepalives_idle', %(idle)s, false),
    set_config('tcp_keepalives_interval', %(interval)s, false),
    set_config('tcp_keepalives_count', %(count)s, false)"""


class TrioConnection(psycopg.AsyncConnection[TupleRow]):
    """A connection for one task at a time. Whatever interrupts a statement, cancellation too, closes it: the server
    ends what it was doing by its own time limits, and nobody uses a connection in an unknown state."""

    def __init__(self, pgconn: PGconn, *arguments: Any) -> None:
        super().__init__(pgconn, *arguments)
        self.lock = trio.Lock()  # type: ignore[assignment]  # asyncio's needs its own loop once two tasks meet

    async def wait(
        self,
        gen: Generator[Any, Any, R],
        interval: float = 0.0,
        timeout: float | None = None,  # noqa: ASYNC109  # psycopg's signature; only notifies() gives one, and is not used
    ) -> R:
        try:
            return await _drive(gen, self.pgconn.socket)
        except BaseException:
            if self.pgconn.transaction_status != TransactionStatus.IDLE:
                self.pgconn.finish()
            raise

    @property
    def usable(self) -> bool:
        """Whether it is open, at rest, and nothing came in unasked: what the server says by itself is that it
        goes, or the end of the stream."""
        if self.closed or self.pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        return not _readable(self.pgconn.socket)

    def finish(self) -> None:
        """Closes it at once. Idempotent."""
        self.pgconn.finish()


async def open_connection(address: PostgresAddress) -> TrioConnection:
    """A connection with our limits in force. Raises :class:`PortUnavailable` when no host can be reached or none takes
    writes, and :class:`PortFault` when the server would acknowledge what a power loss could take back."""
    connection = await _connect(address)
    try:
        with trio.fail_after(address.answer_timeout_s):
            await limit_session(connection, address.statement_timeout_ms)
            await _check_session(connection, address)
    except (psycopg.Error, trio.TooSlowError) as error:
        connection.finish()
        raise port_error(error) from error
    except BaseException:
        connection.finish()
        raise
    return connection


async def _check_session(connection: TrioConnection, address: PostgresAddress) -> None:
    parameters = address.parameters
    limits = {
        "unanswered": parameters["tcp_user_timeout"],
        "idle": parameters["keepalives_idle"],
        "interval": parameters["keepalives_interval"],
        "count": parameters["keepalives_count"],
    }
    found = await (await connection.execute(_SESSION, limits)).fetchone()
    assert found is not None
    if found[2]:
        raise PortUnavailable(
            f"the {STORE}'s PostgreSQL is a replica, which takes no writes: name the primary, or promote this one"
        )
    for name, value in zip(("synchronous_commit", "fsync"), found, strict=False):
        if value == "off":
            raise PortFault(
                f"PostgreSQL has {name}=off, so a commit that it acknowledged can be lost: set it to on"
                f" (ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf())"
            )


async def limit_session(connection: TrioConnection, limit_ms: int) -> None:
    """Sets how long a statement, a wait for a lock and an idle transaction may take in the server; 0: for ever. A
    transaction as a whole, where the server can limit that, has twice the time: it ends the connection."""
    await connection.execute(_LIMITS, {"limit": str(limit_ms)})


def port_error(error: psycopg.Error | trio.TooSlowError) -> PortError:
    """What ``error`` means to the caller of a port."""
    if isinstance(error, trio.TooSlowError):
        return PortUnavailable(f"the {STORE}'s PostgreSQL did not answer in time")
    text = (str(error).splitlines() or [type(error).__name__])[0]
    # Class 25: a transaction that the server does not let go on, because it took too long or the server is a standby.
    refused = (error.sqlstate or "").startswith("25")
    if refused or isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return PortUnavailable(f"the {STORE}'s PostgreSQL is not available ({text})")
    if (error.sqlstate or "").startswith("XX"):
        return PortFault(f"the {STORE} in PostgreSQL is damaged ({text}): {MEND}")
    return PortFault(f"the {STORE} in PostgreSQL is damaged or not ours ({text})")


async def _connect(address: PostgresAddress) -> TrioConnection:
    failed: psycopg.Error | trio.TooSlowError
    try:
        with trio.fail_after(address.connect_timeout_s):
            attempts = await trio.to_thread.run_sync(
                partial(conninfo_attempts, dict(address.parameters)), abandon_on_cancel=True
            )
    except (psycopg.Error, trio.TooSlowError) as error:
        raise port_error(error) from error
    assert attempts
    for attempt in attempts:
        try:
            with trio.fail_after(address.connect_timeout_s):
                connection = await _drive(TrioConnection._connect_gen(make_conninfo("", **attempt)), None)
        except (psycopg.Error, trio.TooSlowError) as error:
            failed = error
        else:
            connection._autocommit = True
            return connection
    raise port_error(failed) from failed


async def _drive(generator: Generator[Any, Any, R], socket: int | None) -> R:
    """Runs a psycopg generator to its end. One that connects (``socket`` is ``None``) names its socket itself,
    because that changes from host to host."""
    try:
        wanted = next(generator)
        while True:
            descriptor, state = wanted if socket is None else (socket, wanted)
            wanted = generator.send(await _ready(descriptor, state))
    except StopIteration as ended:
        value: R = ended.value
        return value
    except (OSError, trio.ClosedResourceError) as error:
        raise psycopg.OperationalError(f"the connection broke: {error}") from error
    finally:
        generator.close()


async def _ready(descriptor: int, state: int) -> Ready:
    if state == Wait.R:
        await trio.lowlevel.wait_readable(descriptor)
        return Ready.R
    if state == Wait.W:
        await trio.lowlevel.wait_writable(descriptor)
        return Ready.W
    # Either will do: the server may have to be read before it reads on.
    found = Ready.NONE
    async with trio.open_nursery() as nursery:

        async def watch(flag: Ready) -> None:
            nonlocal found
            waiting = trio.lowlevel.wait_readable if flag is Ready.R else trio.lowlevel.wait_writable
            await waiting(descriptor)
            found = Ready(found | flag)
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch, Ready.R)
        nursery.start_soon(watch, Ready.W)
    return found


def _readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
