"""The lease of a node: how long it may think that its controller counts on it.

Only the answer to one heartbeat grants it, and it runs from the moment the node *sent* that heartbeat, on the node's
own clock, which goes on through a suspend. The controller counts by its own clock from the moment the heartbeat
arrived, which was later: when it calls a node's lease over, the node did so before.
"""

from typing import Final

import attrs

STOP_MARGIN_MS: Final = 5_000
"""How long an engine may need to be gone once it was killed: the wake-up of its agent, and the kernel's own work."""
DRIFT_PER_MILLE: Final = 10
"""By so much two machines' clocks may differ in rate."""


@attrs.frozen(kw_only=True)
class NodeLease:
    """The newest lease of one agent process, which begins without one. ``floor`` is the (epoch, generation) that the
    controller told when the lease began after a time without: older documents start nothing."""

    until_mono_ms: int | None = None
    floor: tuple[int, int] = (0, 0)
    standing: bool = False
    """Whether it runs for ever: a node that has no controller is granted none."""

    def live(self, now_mono_ms: int) -> bool:
        """Whether it runs."""
        return self.standing or (self.until_mono_ms is not None and now_mono_ms < self.until_mono_ms)

    def renewed(self, sent_mono_ms: int, lease_ms: int) -> "NodeLease":
        """After an answer to the heartbeat that was sent then. An answer that is late or comes again changes nothing:
        it neither shortens the lease nor stretches it."""
        until_ms = sent_mono_ms + lease_ms
        if self.until_mono_ms is not None and self.until_mono_ms >= until_ms:
            return self
        return attrs.evolve(self, until_mono_ms=until_ms)

    def answered(self, *, sent_mono_ms: int, now_mono_ms: int, lease_ms: int, newest: tuple[int, int]) -> "NodeLease":
        """:meth:`renewed`, by an answer that arrives now and tells of the ``newest`` document."""
        renewed = self.renewed(sent_mono_ms, lease_ms)
        begins = not self.live(now_mono_ms) and renewed.live(now_mono_ms)
        return attrs.evolve(renewed, floor=newest) if begins else renewed

    def may_start(self, now_mono_ms: int, accepted: tuple[int, int]) -> bool:
        """Whether an engine may be started by the document ``accepted``: who was cut off asks first."""
        return self.live(now_mono_ms) and accepted >= self.floor


def cut_off_bound_ms(keep_ms: int | None, stop_timeout_ms: int) -> int | None:
    """How long after the lease the engine of a node that is cut off is gone; ``None``: nobody can say."""
    return None if keep_ms is None else keep_ms + stop_timeout_ms + STOP_MARGIN_MS


def run_out_ms(lease_ms: int, bound_ms: int | None) -> int | None:
    """How long a node must have been silent, by the controller's clock, until its engine is gone for certain."""
    if bound_ms is None:
        return None
    by_its_clock_ms = lease_ms + bound_ms
    return by_its_clock_ms + -(-by_its_clock_ms * DRIFT_PER_MILLE // 1_000)


def longer(one_ms: int | None, other_ms: int | None) -> int | None:
    """The longer of two bounds, of which ``None`` is the longest."""
    return None if one_ms is None or other_ms is None else max(one_ms, other_ms)
