"""A wake-up that is remembered until somebody looks, however often it came."""

import trio


class Pulse:
    """For one waiter. It carries no value: who is woken looks at the state itself."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Returns once it was set since the last return."""
        await self._event.wait()
        self._event = trio.Event()
