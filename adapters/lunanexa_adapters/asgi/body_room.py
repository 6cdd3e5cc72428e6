"""How much of bodies all requests together may hold."""

from typing import Final

from lunanexa_core.outcomes import Outcome, Refusal

NO_ROOM: Final = Refusal(
    outcome=Outcome.NO_CAPACITY, message="The service has no room for another request body at the moment."
)


class BodyRoom:
    """Bytes of bodies, from their arrival to the end of their requests. Who finds no room is refused: to wait with half
    a body in hand would hold up those who wait for room too."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max

    def take(self, size_bytes: int) -> bool:
        """Whether there was room."""
        if size_bytes > self._left:
            return False
        self._left -= size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """What was taken is free again."""
        self._left += size_bytes
