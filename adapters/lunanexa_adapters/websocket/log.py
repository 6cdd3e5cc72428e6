"""The numbered output of one workload: what is to be sent, and of a kept one the last that was sent."""

from collections import deque

from lunanexa_adapters.websocket.pieces import Piece


class Room:
    """Bytes that all kept logs together may hold."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0

    def has(self, size_bytes: int) -> bool:
        return self.used_bytes + size_bytes <= self.total_bytes


class Log:
    """Numbers rise by one from 1. A piece that was sent is dropped, unless the log is kept: then the last ones stay,
    within ``pieces_max`` and ``bytes_max``, so that a client can come back for them."""

    def __init__(self, room: Room, *, kept: bool, pieces_max: int, bytes_max: int) -> None:
        self._room = room
        self._pieces: deque[Piece] = deque()
        self._dropped = 0
        self._sent = 0
        self._bytes = 0
        self._pieces_max = pieces_max
        self._bytes_max = bytes_max
        self.kept = kept

    @property
    def last_seq(self) -> int:
        """Of the newest piece; 0 before the first."""
        return self._dropped + len(self._pieces)

    @property
    def unsent(self) -> int:
        """Pieces that are still to be sent."""
        return self.last_seq - self._sent

    def next(self) -> Piece | None:
        """The piece to be sent next."""
        return self._pieces[self._sent - self._dropped] if self.unsent else None

    def sent(self) -> int:
        """Notes that the next one was sent; its number."""
        assert self.unsent
        self._sent += 1
        if not self.kept:
            self._drop()
        return self._sent

    def trim(self, piece: Piece) -> None:
        """Drops what was sent long ago, so that with ``piece`` half of the bounds is held at most."""
        while self._dropped < self._sent and not self._fits(piece, 2):
            self._drop()

    def fits(self, piece: Piece) -> bool:
        """Whether a kept log may hold ``piece`` too."""
        return self._fits(piece, 1) and self._room.has(len(piece.text))

    def can_ever_fit(self, piece: Piece) -> bool:
        """Whether waiting for what is held to be sent could help."""
        return len(piece.text) * 2 <= self._bytes_max and (bool(self._pieces) or self._room.has(len(piece.text)))

    def append(self, piece: Piece) -> None:
        """The caller sees to the bounds."""
        self._pieces.append(piece)
        if self.kept:
            self._bytes += len(piece.text)
            self._room.used_bytes += len(piece.text)

    def rewind(self, after: int) -> bool:
        """Sends anew what followed ``after``; false where that is not held any more."""
        if not self._dropped <= after <= self.last_seq:
            return False
        self._sent = after
        return True

    def drop_unsent(self) -> None:
        """What is not sent never will be."""
        while self.unsent:
            self._release(self._pieces.pop())

    def forget(self) -> None:
        """From now on it is not kept; what is to be sent still is."""
        while self._dropped < self._sent:
            self._drop()
        if self.kept:
            self.kept = False
            self._room.used_bytes -= self._bytes
            self._bytes = 0

    def _fits(self, piece: Piece, share: int) -> bool:
        pieces, size = (len(self._pieces) + 1) * share, (self._bytes + len(piece.text)) * share
        return pieces <= self._pieces_max and size <= self._bytes_max

    def _drop(self) -> None:
        self._release(self._pieces.popleft())
        self._dropped += 1

    def _release(self, piece: Piece) -> None:
        if self.kept:
            self._bytes -= len(piece.text)
            self._room.used_bytes -= len(piece.text)
