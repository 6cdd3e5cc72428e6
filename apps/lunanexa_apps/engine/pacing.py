"""When each token is due, counted from when the request got its slot.

The times are absolute, so that a slow sender does not add its own delay to each token; a reader that
stalled gets what fell due meanwhile at once, as from an engine that went on generating.
"""

import trio


class Pacer:
    def __init__(self, *, ttft_ms: float, itl_ms: float) -> None:
        self._itl_s = itl_ms / 1000
        self._due_s = trio.current_time() + ttft_ms / 1000

    async def token_due(self) -> None:
        """Return when the next token may leave; always a checkpoint."""
        if self._due_s <= trio.current_time():
            await trio.lowlevel.checkpoint()
        else:
            await trio.sleep_until(self._due_s)
        self._due_s += self._itl_s
