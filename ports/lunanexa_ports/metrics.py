"""Driven port: counters, gauges and histograms for people who watch.

Labels come from closed sets (outcomes, dialects, states, aliases in force), never from a caller's text,
so that the number of series is bounded.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

Labels = Mapping[str, str]
NO_LABELS: Labels = MappingProxyType({})


class Metrics(Protocol):
    """One registry. A name keeps its kind and its label names; using it otherwise is a bug (assertion)."""

    @abstractmethod
    def count(self, name: str, labels: Labels = NO_LABELS, by: float = 1) -> None:
        """Adds to a counter (the name ends in ``_total``)."""

    @abstractmethod
    def set(self, name: str, value: float, labels: Labels = NO_LABELS) -> None:
        """Sets a gauge."""

    @abstractmethod
    def observe(
        self, name: str, value: float, labels: Labels = NO_LABELS, buckets: Sequence[float] | None = None
    ) -> None:
        """Adds to a histogram; ``buckets`` count at the first use of a name only."""

    @abstractmethod
    def render(self) -> tuple[str, bytes]:
        """Content type and body of the exposition (OpenMetrics or Prometheus text)."""
