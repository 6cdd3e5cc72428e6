"""Following: a controller that does not lead keeps its state at the head of the journal, and watches the lease."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Final

import structlog
import trio

from lunanexa_apps.controller.high_water import HighWater
from lunanexa_apps.controller.lease import LeaseKeeper
from lunanexa_apps.controller.replay import PrunedBeyond, Replay, rebuild
from lunanexa_core.events import Event
from lunanexa_core.journal import Head, Row
from lunanexa_core.leadership import Lease, Seat, Watched
from lunanexa_ports.clock import Clock
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.journal import JournalReader
from lunanexa_ports.leadership import Leadership
from lunanexa_ports.snapshots import Snapshots

LOOK_MS: Final = 500
"""How often the lease is looked at when the store tells of nothing."""
RETRY_S: Final = 0.5
_TOLD_ROWS: Final = 256
_log = structlog.get_logger()


class Follower:
    """``replayed`` is told after each stretch of rows, with what happened in it; ``may_lead`` is asked when all there
    is was replayed; ``waits`` is told when then another leads, or this one may not, ``lost`` when the store can't be
    read."""

    def __init__(
        self,
        *,
        journal: JournalReader,
        leadership: Leadership,
        clock: Clock,
        seat: Seat,
        lease: LeaseKeeper,
        lease_ms: int,
        water: HighWater,
        snapshots: Snapshots | None,
    ) -> None:
        self.lease: Lease | None = None
        """As it was seen last."""
        self._journal = journal
        self._leadership = leadership
        self._clock = clock
        self._seat = seat
        self._lease = lease
        self._lease_ms = lease_ms
        self._water = water
        self._snapshots = snapshots

    async def follow(
        self,
        replay: Replay | None,
        *,
        replayed: Callable[[Replay, Sequence[Event]], None],
        may_lead: Callable[[], bool],
        waits: Callable[[], None],
        lost: Callable[[PortUnavailable], None],
    ) -> Replay:
        """Goes on from ``replay`` (``None``: from nothing) until it holds the lease; returns all there is then. Raises
        ``PortFault`` when the journal is damaged."""
        watched: Watched | None = None
        if replay is not None:
            self._water.saw(replay.head)
        while True:
            try:
                lease = self.lease = await self._leadership.look()
                now_mono_ms = self._clock.now().mono_ms
                watched = Watched(lease=lease, since_mono_ms=now_mono_ms) if watched is None else watched
                watched = watched.seen(lease, now_mono_ms)
                replay = await self._catch_up(replay, replayed)
                wait_ms = watched.claimable_in_ms(self._seat.holder, self._lease_ms, self._clock.now().mono_ms)
                if not may_lead():
                    wait_ms = LOOK_MS
                if wait_ms == 0:
                    head = await self._lease.claim(lease)
                    if head is None:
                        continue
                    # From here on nobody else can write what this would miss.
                    replay = await self._catch_up(replay, replayed)
                    _check_end(replay, head)
                    return replay
                waits()
                await self._leadership.wait(min(wait_ms, LOOK_MS))
            except PortUnavailable as error:
                lost(error)
                await trio.sleep(RETRY_S)

    async def _catch_up(self, replay: Replay | None, replayed: Callable[[Replay, Sequence[Event]], None]) -> Replay:
        if not await self._water.check(self._journal):
            replay = None  # The store was set back: what was replayed is not what it holds.
        if replay is None:
            replay = await rebuild(self._journal, self._snapshots)
            if replay.rewound is not None:
                self._water.lost(replay.rewound)
            self._water.saw(replay.head)
            replayed(replay, ())
            return replay
        # Fed and told in one step: whoever looks meanwhile sees a state and the head that belongs to it.
        stretch: list[Row] = []
        try:
            async with aclosing(self._journal.read(replay.head.sequence)) as rows:
                async for row in rows:
                    stretch.append(row)
                    if len(stretch) == _TOLD_ROWS:
                        replayed(replay, [replay.feed(row) for row in stretch])
                        stretch = []
            replayed(replay, [replay.feed(row) for row in stretch])
        except PrunedBeyond:
            # It lags so far behind that rows which it has not read have left the ledger.
            _log.warning("replay_begins_anew", sequence=replay.head.sequence)
            return await self._catch_up(None, replayed)
        self._water.saw(replay.head)
        return replay


def _check_end(replay: Replay, head: Head) -> None:
    if (replay.head.sequence, replay.head.journal, replay.head.ledger) != (head.sequence, head.journal, head.ledger):
        raise PortFault(
            f"the journal's head is at {head.sequence} and its rows end at {replay.head.sequence}; restore a backup"
        )
