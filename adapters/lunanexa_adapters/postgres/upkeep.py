"""What is done to a whole store in PostgreSQL: pruning it, filling it, and whether its database may lose its tail."""

from collections.abc import AsyncIterator
from typing import Any, Final

import psycopg
import trio

from lunanexa_adapters.postgres.address import PostgresAddress
from lunanexa_adapters.postgres.connection import TrioConnection, limit_session, open_connection, port_error
from lunanexa_adapters.postgres.listening import NOTIFY
from lunanexa_adapters.postgres.rows import ADDED, HEAD, bigint, columns_of, head_of, read_head
from lunanexa_adapters.sql_rows import COLUMNS
from lunanexa_core.journal import Chain, Head, Row
from lunanexa_ports.errors import PortFault

FILL_ROWS: Final = 512
"""Rows of one statement of a fill."""
_FILL_ANSWER_S: Final = 60.0
"""For one statement of it: the server's own limits are off meanwhile."""

_DROP: Final = f"""DELETE FROM lunanexa_row WHERE sequence IN (
    SELECT sequence FROM lunanexa_row WHERE chain = '{Chain.LEDGER.value}' AND sequence > %b
    AND sequence <= %b AND sequence < (SELECT max(sequence) FROM lunanexa_row) ORDER BY sequence LIMIT %b)"""
_INSERT: Final = f"INSERT INTO lunanexa_row ({COLUMNS}) SELECT added.* FROM {ADDED}"
_SET_HEAD: Final = f"""UPDATE lunanexa_head
    SET sequence = %b, epoch = greatest(epoch, %b), journal = %b, ledger = %b,
    holder = NULL, address = '', changes = changes + 1 RETURNING {HEAD}, {NOTIFY}"""
# Not a replica: whoever takes a base backup or follows changes logically. A slot that waits for a replica counts. A
# role without the right to see more is shown the name of the application, and no state.
_REPLICAS: Final = """SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit'),
    EXISTS (SELECT FROM pg_stat_replication WHERE coalesce(state, '') <> 'backup'
        AND coalesce(application_name, '') <> 'pg_basebackup'
        AND pid NOT IN (SELECT active_pid FROM pg_replication_slots
            WHERE slot_type = 'logical' AND active_pid IS NOT NULL))
    OR EXISTS (SELECT FROM pg_replication_slots WHERE slot_type = 'physical' AND NOT temporary)"""


async def may_lose_tail(accepted: bool, connection: TrioConnection) -> bool:
    """Whether a replica that took over could lack what was acknowledged. Raises :class:`PortFault`, with the way out,
    when that is so and was not ``accepted``."""
    found = await (await connection.execute(_REPLICAS)).fetchone()
    assert found is not None
    names, commit, replicated = found
    if not replicated or (names and commit != "local"):
        return False
    if not accepted:
        why = "synchronous_commit is local" if names else "synchronous_standby_names is empty"
        raise PortFault(
            f"PostgreSQL has a replica and does not wait for it ({why}), so what it acknowledged can be lost when the"
            " replica takes over: set synchronous_standby_names (and synchronous_commit to on), or start with"
            " --accept-lost-tail"
        )
    return True


async def drop_ledger(after: int, until: int, limit: int, connection: TrioConnection) -> int:
    """See :meth:`~lunanexa_ports.journal_upkeep.JournalUpkeep.drop_ledger`."""
    return (await connection.execute(_DROP, (bigint(after), bigint(until), bigint(limit)))).rowcount


async def fill(address: PostgresAddress, rows: AsyncIterator[Row]) -> Head | None:
    """See :meth:`~lunanexa_ports.journal_upkeep.JournalUpkeep.fill`. The one transaction that stays open over round
    trips, on a connection of its own; nobody else writes into an empty store that is being restored."""
    connection = await open_connection(address)
    try:
        await limit_session(connection, 0)
        await _execute(connection, "BEGIN")
        with trio.fail_after(_FILL_ANSWER_S):
            head = await read_head(connection, lock=True)
        (found,) = await _execute(connection, "SELECT EXISTS (SELECT FROM lunanexa_row)")
        if found or head.sequence != 0:
            return None
        batch: list[Row] = []
        async for row in rows:
            head = head.after(row)
            batch.append(row)
            if len(batch) == FILL_ROWS:
                await _execute(connection, _INSERT, columns_of(batch))
                batch.clear()
        await _execute(connection, _INSERT, columns_of(batch))
        where = (bigint(head.sequence), bigint(head.epoch), head.journal, head.ledger)
        filled = head_of(await _execute(connection, _SET_HEAD, where))
        await _execute(connection, "COMMIT")
        return filled
    finally:
        # Without a commit the server takes everything back.
        connection.finish()


async def _execute(connection: TrioConnection, statement: str, parameters: tuple[object, ...] = ()) -> tuple[Any, ...]:
    """The first record that ``statement`` returns, or nothing."""
    try:
        with trio.fail_after(_FILL_ANSWER_S):
            cursor = await connection.execute(statement, parameters)
            found = await cursor.fetchone() if cursor.description else None
    except (psycopg.Error, trio.TooSlowError) as error:
        raise port_error(error) from error
    return found or ()
