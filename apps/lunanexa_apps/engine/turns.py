"""A request's turn: its place in the line, its slot, what is counted of it; here the fault ``hang`` is committed."""

from collections.abc import Awaitable, Callable

import attrs
import trio

from lunanexa_apps.engine import errors
from lunanexa_apps.engine.exchange import Exchange
from lunanexa_apps.engine.faults import FaultKind
from lunanexa_apps.engine.metrics import Metrics, Progress
from lunanexa_apps.engine.pacing import Pacer
from lunanexa_apps.engine.settings import EngineSettings
from lunanexa_apps.engine.slots import Place, Slots


@attrs.frozen(kw_only=True)
class Turns:
    """What the model routes of one engine share."""

    settings: EngineSettings
    slots: Slots
    metrics: Metrics

    async def take(self, exchange: Exchange, tokens: int, work: Callable[[Place, Progress], Awaitable[None]]) -> None:
        """``work`` with a place in the line, or the refusal of a full one."""
        with self.slots.join() as place:
            if place is None:
                self.metrics.rejections += 1
                await exchange.refuse(errors.queue_full(self.slots.waiting))
                return
            with self.metrics.request() as progress:
                if FaultKind.HANG in exchange.struck:
                    async with self.slots.hold(place, tokens):
                        await trio.sleep_forever()
                await work(place, progress)

    def begin(self, progress: Progress, prompt_tokens: int) -> Pacer:
        """The slot was given: what is generated from now on is due by the pacer."""
        self.metrics.started(progress, prompt_tokens)
        return Pacer(ttft_ms=self.settings.ttft_ms, itl_ms=self.settings.itl_ms)
