"""The lease in the one head row: each step is one statement with its condition in it, so that PostgreSQL's lock on the
row puts it before or after any append, never into it."""

from typing import Final

from lunanexa_adapters.postgres.connection import TrioConnection
from lunanexa_adapters.postgres.listening import NOTIFY
from lunanexa_adapters.postgres.rows import HEAD, bigint, head_of
from lunanexa_core.ids import HolderId
from lunanexa_core.journal import Head
from lunanexa_core.leadership import Lease
from lunanexa_ports.errors import PortFault

_CLAIM: Final = """UPDATE lunanexa_head
    SET epoch = greatest(epoch, %b) + 1, holder = %b, address = %b, changes = changes + 1"""
_CLAIMED: Final = f"RETURNING {HEAD}, {NOTIFY}"
_CLAIM_SEEN: Final = f"""{_CLAIM}
    WHERE holder IS NOT DISTINCT FROM %b::text AND address = %b AND epoch = %b AND changes = %b {_CLAIMED}"""
_CLAIM_OWN: Final = f"{_CLAIM} WHERE holder = %b {_CLAIMED}"
_RENEW: Final = f"""UPDATE lunanexa_head SET changes = changes + 1
    WHERE holder = %b AND epoch = %b RETURNING {NOTIFY}"""
_RELEASE: Final = f"""UPDATE lunanexa_head SET holder = NULL, address = '', changes = changes + 1
    WHERE holder = %b AND epoch = %b RETURNING {NOTIFY}"""


async def look(connection: TrioConnection) -> Lease:
    """The lease as it stands."""
    cursor = await connection.execute("SELECT holder, address, epoch, changes FROM lunanexa_head")
    found = await cursor.fetchall()
    if len(found) != 1:
        raise PortFault(f"the journal has {len(found)} heads")
    holder, address, epoch, changes = found[0]
    return Lease(holder=holder, address=address, epoch=epoch, changes=changes)


async def claim(
    holder: HolderId, address: str, seen: Lease | None, above: int, connection: TrioConnection
) -> Head | None:
    """See :meth:`~lunanexa_ports.leadership.Leadership.claim`."""
    asked = (bigint(above), holder, address)
    if seen is None:
        cursor = await connection.execute(_CLAIM_OWN, (*asked, holder))
    else:
        row = (seen.holder, seen.address, bigint(seen.epoch), bigint(seen.changes))
        cursor = await connection.execute(_CLAIM_SEEN, (*asked, *row))
    found = await cursor.fetchone()
    return None if found is None else head_of(found)


async def renew(holder: HolderId, epoch: int, connection: TrioConnection) -> bool:
    """See :meth:`~lunanexa_ports.leadership.Leadership.renew`."""
    return (await connection.execute(_RENEW, (holder, bigint(epoch)))).rowcount == 1


async def release(holder: HolderId, epoch: int, connection: TrioConnection) -> None:
    """See :meth:`~lunanexa_ports.leadership.Leadership.release`."""
    await connection.execute(_RELEASE, (holder, bigint(epoch)))
