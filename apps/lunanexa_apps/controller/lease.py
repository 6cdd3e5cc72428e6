"""The leader's hold on the store: claimed, renewed at half of what remains, and known to be over before others may
think so."""

from typing import Final

import structlog
import trio

from lunanexa_core.journal import Head
from lunanexa_core.leadership import Held, Lease, Seat
from lunanexa_ports.clock import Clock
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.leadership import Leadership

RENEW_LEAST_MS: Final = 100
_log = structlog.get_logger()


class Fenced(Exception):
    """Another controller leads: what this one decides can't become durable any more."""


class LeaseKeeper:
    """One controller's claim to lead. It writes while :meth:`hold` says so."""

    def __init__(self, leadership: Leadership, clock: Clock, seat: Seat, lease_ms: int) -> None:
        self.epoch = 0
        self._leadership = leadership
        self._clock = clock
        self._seat = seat
        self._lease_ms = lease_ms
        self._held = Held(0)
        self._in_doubt = False

    async def claim(self, seen: Lease) -> Head | None:
        """Takes lease and epoch, if the lease is still as ``seen``. Raises as the port does."""
        return await self._claim(seen)

    async def claim_again(self, *, above: int = 0) -> Head:
        """A new epoch, above ``above``, for who leads already, so that nothing of the old one can come late. Raises
        :class:`Fenced` when another took over. Until it succeeds nothing is renewed: whether it was done may be
        unknown."""
        self._in_doubt = True
        head = await self._claim(None, above)
        if head is None:
            raise Fenced(f"another controller took over from epoch {self.epoch}")
        return head

    @property
    def held(self) -> bool:
        """Whether nobody else can lead at this instant, by this controller's own clock."""
        return self._held.valid(self._clock.now().mono_ms)

    async def hold(self) -> bool:
        """Whether a write may begin now. A lease that ran out while this process or the store stood still is
        renewed first, if nobody else has taken it; ``False``: the store can't be asked."""
        if not self.held:
            try:
                await self._renew()
            except PortUnavailable:
                return False
        return self.held

    async def run(self) -> None:
        """Renews for ever. Raises :class:`Fenced` when the lease is another's."""
        failed = False
        while True:
            now_mono_ms = self._clock.now().mono_ms
            await trio.sleep(self._held.renew_in_ms(now_mono_ms, least_ms=RENEW_LEAST_MS) / 1000)
            if self._in_doubt:
                continue
            try:
                await self._renew()
            except PortUnavailable as error:
                if not failed:
                    _log.warning("lease_not_renewed", problem=str(error))
                failed = True
                continue
            failed = False

    async def release(self) -> None:
        """Gives the lease back if it holds it; where the store can't be reached it runs out."""
        if self.epoch == 0:
            return
        try:
            await self._leadership.release(self._seat.holder, self.epoch)
        except PortUnavailable as error:
            _log.warning("lease_not_released", problem=str(error))

    async def _claim(self, seen: Lease | None, above: int = 0) -> Head | None:
        asked_mono_ms = self._clock.now().mono_ms
        head = await self._leadership.claim(self._seat.holder, self._seat.address, seen=seen, above=above)
        if head is not None:
            self.epoch, self._in_doubt = head.epoch, False
            self._held = Held.asked(asked_mono_ms, self._lease_ms)
        return head

    async def _renew(self) -> None:
        asked_mono_ms, epoch = self._clock.now().mono_ms, self.epoch
        kept = await self._leadership.renew(self._seat.holder, epoch)
        if self._in_doubt or epoch != self.epoch:
            return  # A claim went on meanwhile, and knows more.
        if not kept:
            raise Fenced(f"another controller took over from epoch {epoch}")
        self._held = Held.asked(asked_mono_ms, self._lease_ms)
