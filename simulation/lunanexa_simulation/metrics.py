"""Metrics kept in memory, for checkers and tests to look at."""

import enum
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from lunanexa_ports.metrics import NO_LABELS, Labels, Metrics

SeriesKey: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class _Kind(enum.Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@attrs.frozen
class _Shape:
    kind: _Kind
    label_names: tuple[str, ...]


class SimulatedMetrics(Metrics):
    """A histogram keeps its count and its sum."""

    def __init__(self) -> None:
        self._shapes: dict[str, _Shape] = {}
        self._values: dict[SeriesKey, float] = {}
        self._unread: list[SeriesKey] = []

    def count(self, name: str, labels: Labels = NO_LABELS, by: float = 1) -> None:
        assert name.endswith("_total"), name
        assert by >= 0, (name, by)
        self._check(name, _Kind.COUNTER, labels)
        self._add(name, labels, by)

    def set(self, name: str, value: float, labels: Labels = NO_LABELS) -> None:
        self._check(name, _Kind.GAUGE, labels)
        self._put(_key(name, labels), float(value))

    def observe(
        self, name: str, value: float, labels: Labels = NO_LABELS, buckets: Sequence[float] | None = None
    ) -> None:
        self._check(name, _Kind.HISTOGRAM, labels)
        self._add(f"{name}_count", labels, 1)
        self._add(f"{name}_sum", labels, value)

    def render(self) -> tuple[str, bytes]:
        lines = [f"{name}{_braces(labels)} {value!r}\n" for (name, labels), value in sorted(self._values.items())]
        return _CONTENT_TYPE, "".join(lines).encode()

    def value(self, name: str, labels: Labels = NO_LABELS) -> float:
        """The value of one series (of a histogram: ``<name>_count``, ``<name>_sum``); 0 when it is not there."""
        return self._values.get(_key(name, labels), 0.0)

    def series(self) -> Mapping[SeriesKey, float]:
        """A copy of all there is."""
        return dict(self._values)

    def new_series(self) -> Sequence[str]:
        """Name and labels of each series that is new since this was asked last: all of a page that is no number."""
        unread, self._unread = self._unread, []
        return [f"{name}{_braces(labels)}" for name, labels in unread]

    def _check(self, name: str, kind: _Kind, labels: Labels) -> None:
        shape = _Shape(kind, tuple(sorted(labels)))
        known = self._shapes.setdefault(name, shape)
        assert known == shape, f"{name} is {known}, not {shape}"

    def _add(self, name: str, labels: Labels, by: float) -> None:
        key = _key(name, labels)
        self._put(key, self._values.get(key, 0.0) + by)

    def _put(self, key: SeriesKey, value: float) -> None:
        if key not in self._values:
            self._unread.append(key)
        self._values[key] = value


def _key(name: str, labels: Labels) -> SeriesKey:
    return name, tuple(sorted(labels.items()))


def _braces(labels: tuple[tuple[str, str], ...]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
