"""Reading an engine's own counters from Prometheus text, by exact name. What is absent is unknown, never 0.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import re
from typing import Final

from lunanexa_core.drivers.driver import MetricMap
from lunanexa_core.southbound.heartbeat import EngineReadings

MAX_BODY_BYTES: Final = 1 << 20
MAX_READING: Final = 1_000_000
_SAMPLE = re.compile(rb"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{[^\n]*\})?[ \t]+([^ \t]+)(?:[ \t]+-?[0-9]+)?[ \t]*\Z")


def read_metrics(body: bytes, metrics: MetricMap) -> EngineReadings:
    """The readings in ``body``. Series of one name (one a label set) are added up; one that can't be read
    makes the whole reading unknown, because a part of a sum is a wrong number."""
    if len(body) > MAX_BODY_BYTES:
        return EngineReadings()
    return EngineReadings(running=_total(body, metrics.running), waiting=_total(body, metrics.waiting))


def _total(body: bytes, name: str) -> int | None:
    wanted = name.encode()
    total: int | None = None
    for line in body.split(b"\n"):
        if not line.startswith(wanted) or line[len(wanted) : len(wanted) + 1] not in (b"{", b" ", b"\t"):
            continue
        value = _value(line.removesuffix(b"\r"))
        if value is None:
            return None
        total = value if total is None else total + value
    return total if total is None or total <= MAX_READING else None


def _value(line: bytes) -> int | None:
    match = _SAMPLE.match(line)
    if match is None:
        return None
    try:
        number = float(match[2])
    except ValueError:
        return None
    # Also false for NaN, which exporters write for "not known".
    return int(number) if 0 <= number <= MAX_READING else None
