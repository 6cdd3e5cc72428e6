"""One deadline from end to end: the server is told what is left of it, and this program keeps it too."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio

from lunanexa_client.errors import DeadlineExceeded, ErrorFacts
from lunanexa_core.outcomes import Outcome


@attrs.frozen(kw_only=True)
class Deadline:
    """``at_s`` is on Trio's clock. The server gets a grace to say itself what became of the request."""

    at_s: float
    budget_ms: int
    grace_ms: int
    request: str
    """Which one, for the message."""

    def remaining_ms(self) -> int:
        """What is left of the budget; 0 when it is over."""
        return max(0, math.ceil((self.at_s - trio.current_time()) * 1000))

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Cancels what it holds when deadline and grace are over. Raises :class:`DeadlineExceeded`."""
        try:
            with trio.fail_at(self.at_s + self.grace_ms / 1000):
                yield
        except trio.TooSlowError:
            facts = ErrorFacts(code=Outcome.DEADLINE_EXCEEDED.value)
            raise DeadlineExceeded(f"{self.request}: no end within {self.budget_ms} ms", facts) from None


def deadline_in(budget_ms: int, *, grace_ms: int, request: str) -> Deadline:
    """The deadline that is ``budget_ms`` from now."""
    return Deadline(
        at_s=trio.current_time() + budget_ms / 1000, budget_ms=budget_ms, grace_ms=grace_ms, request=request
    )
