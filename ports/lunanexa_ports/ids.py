"""Driven port: where new identifiers, secrets and jitter come from."""

from abc import abstractmethod
from typing import Protocol


class IdSource(Protocol):
    """Identifiers and randomness of one process."""

    @abstractmethod
    def new(self, kind: str) -> str:
        """A fresh identifier ``<kind>_…`` (:func:`lunanexa_core.ids.format_id`); never the same twice."""

    @abstractmethod
    def secret(self) -> str:
        """256 unguessable bits, URL-safe base 64 without padding (43 characters)."""

    @abstractmethod
    def below(self, limit: int) -> int:
        """A uniform integer from 0 to ``limit`` - 1, for jitter. ``limit`` is at least 1."""
