"""The drain of a controller that is asked to end: nothing new is admitted, and what it relays may end."""

from typing import Final

import structlog
import trio

from lunanexa_apps.controller.kernel import Kernel
from lunanexa_core.commands import BeginDrain

_log = structlog.get_logger()
_POLL_S: Final = 0.05
_ACTOR: Final = "signal"


async def drain(kernel: Kernel, within_ms: int) -> None:
    """Returns when nothing is relayed any more, or after ``within_ms``."""
    await kernel.ask(BeginDrain(), _ACTOR)
    with trio.move_on_after(within_ms / 1000):
        told = -1
        while kernel.leading and kernel.relayed:
            if kernel.relayed != told:
                told = kernel.relayed
                _log.info("draining", requests=told)
            await trio.sleep(_POLL_S)
