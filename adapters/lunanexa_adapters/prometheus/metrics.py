"""Metrics in a registry of ``prometheus_client`` of our own, beside the values of this process."""

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from lunanexa_ports.metrics import NO_LABELS, Labels, Metrics

Collector = TypeVar("Collector", Counter, Gauge, Histogram)

DEFAULT_BUCKETS: Final = Histogram.DEFAULT_BUCKETS


class PrometheusMetrics(Metrics):
    """Series are made at their first use. ``help_texts`` explains names to people (``# HELP``)."""

    def __init__(self, help_texts: Mapping[str, str] = NO_LABELS) -> None:
        # One more gauge a series, which nobody reads; the library has only a switch for the process.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library left it untyped
        self._help_texts = help_texts
        self._registry = CollectorRegistry()
        self._collectors: dict[str, tuple[tuple[str, ...], Counter | Gauge | Histogram]] = {}
        ProcessCollector(registry=self._registry)

    def count(self, name: str, labels: Labels = NO_LABELS, by: float = 1) -> None:
        assert name.endswith("_total"), name
        counter = self._collector(Counter, name, labels)
        (counter.labels(**labels) if labels else counter).inc(by)

    def set(self, name: str, value: float, labels: Labels = NO_LABELS) -> None:
        gauge = self._collector(Gauge, name, labels)
        (gauge.labels(**labels) if labels else gauge).set(value)

    def observe(
        self, name: str, value: float, labels: Labels = NO_LABELS, buckets: Sequence[float] | None = None
    ) -> None:
        histogram = self._collector(Histogram, name, labels, buckets)
        (histogram.labels(**labels) if labels else histogram).observe(value)

    def render(self) -> tuple[str, bytes]:
        return CONTENT_TYPE_LATEST, generate_latest(self._registry)

    def _collector(
        self, kind: type[Collector], name: str, labels: Labels, buckets: Sequence[float] | None = None
    ) -> Collector:
        names = tuple(sorted(labels))
        if (known := self._collectors.get(name)) is not None:
            known_names, collector = known
            assert isinstance(collector, kind), f"{name} is not a {kind.__name__}"
            assert known_names == names, f"{name} has the labels {known_names}, not {names}"
            return collector
        text = self._help_texts.get(name, "")
        if kind is Histogram:
            made = Histogram(name, text, names, registry=self._registry, buckets=buckets or DEFAULT_BUCKETS)
        else:
            made = kind(name, text, names, registry=self._registry)
        self._collectors[name] = (names, made)
        return made
