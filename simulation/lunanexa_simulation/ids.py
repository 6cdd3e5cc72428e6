"""Identifiers, secrets and jitter that a seed decides."""

import base64
from typing import Final

from lunanexa_core.ids import format_id
from lunanexa_ports.clock import Clock
from lunanexa_ports.ids import IdSource
from lunanexa_simulation.rng import Stream

_RANDOM_BITS: Final = 80
_SECRET_BYTES: Final = 32


class SimulatedIds(IdSource):
    """All drawn from ``stream``, of which each process has its own."""

    def __init__(self, stream: Stream, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock

    def new(self, kind: str) -> str:
        return format_id(kind, self._clock.now().wall_ms, self._stream.getrandbits(_RANDOM_BITS))

    def secret(self) -> str:
        return base64.urlsafe_b64encode(self._stream.randbytes(_SECRET_BYTES)).rstrip(b"=").decode()

    def below(self, limit: int) -> int:
        assert limit >= 1, limit
        return self._stream.randrange(limit)
