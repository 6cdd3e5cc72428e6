"""Receipts: what was acknowledged is durable, and what ended is settled exactly once."""

from typing import Final

import attrs
import structlog
import trio

from lunanexa_apps.controller.gateway.progress import Progress
from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.workload import LedgerReceipt, Settlement
from lunanexa_ports.dispatch import Dispatch
from lunanexa_ports.errors import PortUnavailable

NO_KERNEL: Final = Refusal(outcome=Outcome.STORE_UNAVAILABLE, message="The service is not available right now.")
NO_RECEIPT: Final = Refusal(
    outcome=Outcome.RECEIPT_UNAVAILABLE,
    message="The request was served, but its receipt could not be stored in time.",
)


@attrs.define(eq=False)
class _Delivery:
    """One settlement on its way to the kernel."""

    settlement: Settlement
    receipt: LedgerReceipt | None = None
    done: trio.Event = attrs.Factory(trio.Event)


class Settler:
    """Settles requests of one gateway. The kernel takes the first settlement of a workload; a repetition is
    harmless.

    A delivery has a task of its own, because the kernel's answer can't be cancelled and may come late: who
    asked waits for so long and goes on. There are never more of them than requests in progress and such as were
    in progress when the store failed, after which none is admitted."""

    def __init__(self, dispatch: Dispatch, settings: GatewaySettings) -> None:
        self._dispatch = dispatch
        self._receipt_s = settings.receipt_ms / 1000
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Delivers until it is cancelled; then the kernel has what was handed over, or ends itself. What comes
        later is left to the next kernel."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def settle(self, progress: Progress, outcome: Outcome | None, detail: str | None) -> Refusal | None:
        """Settles, and waits for the receipt within bounds. ``None``: the client may be told what it was going to
        be told. A refusal: of an answer that may not be told as a success."""
        delivery = self._deliver(progress.settle_as(outcome, detail))
        progress.owed = False
        with trio.move_on_after(self._receipt_s):
            await delivery.done.wait()
        progress.receipt = delivery.receipt
        if outcome is not None:
            return None
        if delivery.receipt is None:
            progress.outcome = NO_RECEIPT.outcome
            return NO_RECEIPT
        told = delivery.receipt.receipt.settlement.outcome
        if told is None:
            return None
        # Somebody settled before us (a lapsed session): a client is never told what the receipt contradicts.
        progress.outcome = told
        return Refusal(outcome=told, message="The service gave this request up meanwhile.")

    async def clean_up(self, progress: Progress, outcome: Outcome, detail: str | None = None) -> None:
        """Settles what an abrupt end left owing. The caller shields and times it."""
        if not progress.owed:
            if progress.settlement is None:
                progress.outcome = outcome
            return
        delivery = self._deliver(progress.settle_as(outcome, detail))
        progress.owed = False
        await delivery.done.wait()

    def settle_late(self, progress: Progress, outcome: Outcome) -> None:
        """Settles, without waiting, what was admitted when its request had ended already."""
        self._deliver(progress.settle_as(outcome, "not_admitted_in_time"))

    def _deliver(self, settlement: Settlement) -> _Delivery:
        delivery = _Delivery(settlement)
        if self._nursery is None:
            delivery.done.set()
        else:
            self._nursery.start_soon(self._hand_over, delivery)
        return delivery

    async def _hand_over(self, delivery: _Delivery) -> None:
        try:
            delivery.receipt = await self._dispatch.settle(delivery.settlement)
        except PortUnavailable as error:
            # The kernel is gone; the next one settles what it finds open.
            workload = delivery.settlement.workload
            structlog.get_logger("lunanexa.gateway").warning(
                "settlement_left_open", workload_id=workload, problem=str(error)
            )
        finally:
            # Also when it was cancelled on its way: who waits for it must not outlast the gateway.
            delivery.done.set()
