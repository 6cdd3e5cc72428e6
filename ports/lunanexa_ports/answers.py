"""Driven port: whole answers that their callers let be kept, to be given again to the same idempotency key."""

from abc import abstractmethod
from typing import Final, Protocol

import attrs

from lunanexa_core.ids import WorkloadId

ANSWER_OVERHEAD_BYTES: Final = 1_024
"""What an answer counts beside its body, so that many small ones are bounded too."""


@attrs.frozen(kw_only=True)
class Answer:
    """What an engine answered, as its client got it; a stream with its events, without comments of ours."""

    status: int
    content_type: str
    body: bytes = attrs.field(repr=False)

    @property
    def size_bytes(self) -> int:
        """What it counts."""
        return len(self.body) + ANSWER_OVERHEAD_BYTES


class Answers(Protocol):
    """A store of bounded size, told at its opening: all answers in it count together. Durable, for its owner alone.
    Nothing of an answer is in it after :meth:`remove_expired` at its time.

    Methods but ``aclose`` raise ``PortUnavailable`` (no room on the disk, closed) with nothing changed, ``PortFault``
    when the store is corrupt. Cancellation does not interrupt them."""

    @abstractmethod
    async def put(self, workload: WorkloadId, answer: Answer, *, now_wall_ms: int, expires_wall_ms: int) -> bool:
        """Keeps an answer; one that was kept for the workload is replaced. ``False``: it would not fit, even without
        those that have expired, and nothing was put."""

    @abstractmethod
    async def get(self, workload: WorkloadId, now_wall_ms: int) -> Answer | None:
        """The answer, unless it was never kept or has expired."""

    @abstractmethod
    async def remove_expired(self, now_wall_ms: int) -> int:
        """Removes what has expired, also from the medium, and returns how many answers that were."""

    @abstractmethod
    async def aclose(self) -> None:
        """Closes the store. Idempotent."""
