"""Identifiers and secrets from the kernel's random generator. The only source of randomness in the real world."""

import secrets
from typing import Final

from lunanexa_core.ids import format_id
from lunanexa_ports.clock import Clock
from lunanexa_ports.ids import IdSource

_RANDOM_BITS: Final = 80
_SECRET_BYTES: Final = 32


class SystemIds(IdSource):
    """80 random bits an identifier, 256 a secret."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def new(self, kind: str) -> str:
        return format_id(kind, self._clock.now().wall_ms, secrets.randbits(_RANDOM_BITS))

    def secret(self) -> str:
        return secrets.token_urlsafe(_SECRET_BYTES)

    def below(self, limit: int) -> int:
        assert limit >= 1, limit
        return secrets.randbelow(limit)
