"""Failures in a row: told at the first and then ever more seldom, waited for ever longer."""

from collections.abc import Callable

import structlog
import trio

from lunanexa_apps.node.pulse import Pulse
from lunanexa_apps.node.settings import NodePorts, NodeSettings
from lunanexa_core.lifecycle.backoff import backoff_ms

_log = structlog.get_logger()


class Retry:
    """Of one task that tries again and again."""

    def __init__(self, ports: NodePorts, settings: NodeSettings, *, cap_ms: Callable[[], int]) -> None:
        """``cap_ms``: the longest wait, asked before each."""
        self._below: Callable[[int], int] = ports.ids.below
        self._base_ms = settings.retry_base_ms
        self._cap_ms = cap_ms
        self.failures = 0

    def told(self, event: str, reason: str, **more: str) -> None:
        self.failures += 1
        # At powers of two: an outage of hours is a few lines.
        if self.failures & (self.failures - 1) == 0:
            _log.warning(event, reason=reason, failures=self.failures, **more)

    def worked(self, event: str) -> None:
        if self.failures:
            _log.info(event, after_failures=self.failures)
        self.failures = 0

    async def wait(self, sooner: Pulse | None = None) -> None:
        """A new leader's document ends the wait ``sooner`` too: it serves nothing before it was told what runs."""
        delay_ms = backoff_ms(self.failures, self._below(1_000), base_ms=self._base_ms, cap_ms=self._cap_ms())
        if sooner is None:
            await trio.sleep(delay_ms / 1_000)
            return
        with trio.move_on_after(delay_ms / 1_000):
            await sooner.wait()
