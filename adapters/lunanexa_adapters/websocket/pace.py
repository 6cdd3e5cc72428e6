"""How fast one connection is read."""

import trio


class Pace:
    """Lets through ``per_s`` units a second, of which a second's worth may come at once. Whoever comes faster
    waits, and TCP slows its sender down."""

    def __init__(self, per_s: int) -> None:
        self._unit_s = 1 / per_s
        self._paid_until_s = 0.0

    async def take(self, units: int) -> None:
        """Waits until ``units`` may pass. A checkpoint in any case: a loop of frames starves nobody."""
        now_s = trio.current_time()
        self._paid_until_s = max(self._paid_until_s, now_s) + units * self._unit_s
        ahead_s = self._paid_until_s - now_s - 1.0
        if ahead_s > 0:
            await trio.sleep(ahead_s)
        else:
            await trio.lowlevel.checkpoint()
