"""What becomes durable: the leader's appends, and what is done when nobody knows how one ended."""

import enum
from collections.abc import Sequence
from contextlib import aclosing

import structlog

from lunanexa_apps.controller.lease import Fenced, LeaseKeeper
from lunanexa_core.journal import Head, Row
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.journal import Appended, Journal

_log = structlog.get_logger()


class Written(enum.Enum):
    """Whether rows are durable."""

    YES = "yes"
    NO = "no"
    IN_DOUBT = "in_doubt"


class Writer:
    """Appends under the lease. Raises :class:`~lunanexa_apps.controller.lease.Fenced` when another leads."""

    def __init__(self, journal: Journal, lease: LeaseKeeper) -> None:
        self._journal = journal
        self._lease = lease

    @property
    def epoch(self) -> int:
        """The epoch that rows are written in."""
        return self._lease.epoch

    @property
    def leads(self) -> bool:
        """Whether nobody else can lead at this instant."""
        return self._lease.held

    async def append(self, head: Head, rows: Sequence[Row]) -> Written:
        """Writes ``rows`` after ``head``; never ``NO``."""
        try:
            if not await self._lease.hold():
                _log.error("lease_ran_out", epoch=self._lease.epoch)
                return Written.IN_DOUBT
            appended = await self._journal.append(self._lease.epoch, head, rows)
        except PortUnavailable as error:
            _log.error("store_unavailable", problem=str(error))
            return Written.IN_DOUBT
        if appended is Appended.FENCED:
            raise Fenced(f"another controller took over from epoch {self._lease.epoch}")
        return Written.YES

    async def resolve(self, head: Head, rows: Sequence[Row]) -> Written:
        """After an append of unknown outcome: takes a new epoch, so that the old append can't come late, then looks
        whether the rows are there. ``IN_DOUBT``: the store can't be asked yet."""
        try:
            await self._lease.claim_again()
            async with aclosing(self._journal.read(head.sequence)) as found:
                tail = [row async for row in found]
        except PortUnavailable:
            return Written.IN_DOUBT
        written = [row.hash for row in tail] == [row.hash for row in rows]
        if tail and not written:
            raise Fenced("the journal holds rows that this controller did not write")
        _log.info("store_back", epoch=self._lease.epoch, rows_were_written=written)
        return Written.YES if written else Written.NO
