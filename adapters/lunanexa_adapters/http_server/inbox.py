"""What an application's ``receive()`` reads from: bounded, and never blocked for a disconnect.

A plain bounded channel is a trap here: an application that answers 413 without reading leaves it full,
and then nobody can say ``http.disconnect`` any more, neither to it nor to the task that fills it.
"""

from collections import deque

import trio

from lunanexa_ports.asgi import Message

INBOX_BYTES = 256 * 1024
INBOX_MESSAGES = 64


class Inbox:
    """Overflow policy: the reader of the socket waits, which makes TCP slow the sender down."""

    def __init__(self, *, drop_on_disconnect: bool) -> None:
        """``drop_on_disconnect``: an unread request body is worth nothing without its client, while
        WebSocket messages sent before a close are still to be read."""
        self._drop_on_disconnect = drop_on_disconnect
        self._messages: deque[Message] = deque()
        self._queued_bytes = 0
        self._end: Message | None = None
        self._readers = trio.lowlevel.ParkingLot()
        self._writers = trio.lowlevel.ParkingLot()

    async def put(self, message: Message) -> None:
        """Waits while the inbox is full. After a disconnect messages are dropped."""
        if message["type"].endswith(".disconnect"):
            self.disconnect(message)
            return
        size = _size(message)
        while self._end is None and self._is_full(size):
            await self._writers.park()
        if self._end is None:
            self._messages.append(message)
            self._queued_bytes += size
            self._readers.unpark_all()

    def disconnect(self, message: Message) -> None:
        """Never waits; wakes whoever waits on either side. The first one counts."""
        if self._end is not None:
            return
        self._end = message
        if self._drop_on_disconnect:
            self._messages.clear()
            self._queued_bytes = 0
        self._readers.unpark_all()
        self._writers.unpark_all()

    async def receive(self) -> Message:
        """The next message; once disconnected, that again and again."""
        await trio.lowlevel.checkpoint_if_cancelled()  # the messages at hand are few: no turn of the scheduler
        while not self._messages:
            if self._end is not None:
                await trio.lowlevel.checkpoint()  # without end: here an application may loop
                return dict(self._end)
            await self._readers.park()
        message = self._messages.popleft()
        self._queued_bytes -= _size(message)
        self._writers.unpark_all()
        return message

    def _is_full(self, size: int) -> bool:
        return bool(self._messages) and (
            self._queued_bytes + size > INBOX_BYTES or len(self._messages) >= INBOX_MESSAGES
        )


def _size(message: Message) -> int:
    return sum(len(message.get(part) or b"") for part in ("body", "bytes", "text"))
