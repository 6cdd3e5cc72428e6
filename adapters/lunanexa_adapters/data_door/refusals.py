"""What is told of connections that were not let in: a line, and where there are many of a kind one a second."""

from typing import Final

import structlog
import trio

_EACH_S: Final = 1.0
_KINDS_MAX: Final = 64
_log = structlog.get_logger("lunanexa.door")


class Refusals:
    """Counts by reason. Reasons are few: ours, and OpenSSL's names of what was wrong with a handshake."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[float, int]] = {}

    def tell(self, reason: str, **facts: object) -> None:
        """One connection was refused. Nothing that it sent is told but who it proved to be."""
        now = trio.current_time()
        told_at, untold = self._since.get(reason, (-_EACH_S, 0))
        if now - told_at < _EACH_S:
            self._since[reason] = (told_at, untold + 1)
            return
        if len(self._since) >= _KINDS_MAX:
            self._since.clear()
        self._since[reason] = (now, 0)
        _log.info("door_refused", reason=reason, **facts, **({"untold_before": untold} if untold else {}))

    @staticmethod
    def tell_fault(error: BaseException) -> None:
        """One connection's own task failed, and it alone."""
        _log.error("door_failed", exc_info=error)
