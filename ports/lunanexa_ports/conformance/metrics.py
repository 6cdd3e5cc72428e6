"""What every metrics registry must do, seen through what it renders."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from lunanexa_ports.metrics import Metrics

MakeMetrics: TypeAlias = Callable[[], Metrics]
Check: TypeAlias = Callable[[MakeMetrics], Awaitable[None]]


def samples(metrics: Metrics) -> dict[str, float]:
    """Series, as written, to their values."""
    content_type, body = metrics.render()
    assert content_type.startswith(("text/plain", "application/openmetrics-text")), content_type
    lines = [line for line in body.decode().splitlines() if line and not line.startswith("#")]
    return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}


async def check_counter(make: MakeMetrics) -> None:
    metrics = make()
    metrics.count("lunanexa_requests_total")
    metrics.count("lunanexa_requests_total", by=2)
    assert samples(metrics)["lunanexa_requests_total"] == 3


async def check_labels(make: MakeMetrics) -> None:
    """Each set of values is a series of its own, in whatever order the labels were given."""
    metrics = make()
    metrics.count("lunanexa_outcomes_total", {"outcome": "queue_full", "dialect": "chat"})
    metrics.count("lunanexa_outcomes_total", {"dialect": "chat", "outcome": "queue_full"})
    metrics.count("lunanexa_outcomes_total", {"dialect": "chat", "outcome": 'quo"te\\'})
    found = samples(metrics)
    assert found['lunanexa_outcomes_total{dialect="chat",outcome="queue_full"}'] == 2
    assert found['lunanexa_outcomes_total{dialect="chat",outcome="quo\\"te\\\\"}'] == 1


async def check_gauge(make: MakeMetrics) -> None:
    metrics = make()
    metrics.set("lunanexa_queue_length", 5)
    metrics.set("lunanexa_queue_length", 2.5)
    assert samples(metrics)["lunanexa_queue_length"] == 2.5


async def check_histogram(make: MakeMetrics) -> None:
    metrics = make()
    for value in (0.5, 3.0):
        metrics.observe("lunanexa_wait_seconds", value, {"band": "Normal"}, buckets=(1, 2))
    found = samples(metrics)
    assert found['lunanexa_wait_seconds_count{band="Normal"}'] == 2
    assert found['lunanexa_wait_seconds_sum{band="Normal"}'] == 3.5


async def check_name_keeps_its_shape(make: MakeMetrics) -> None:
    """Another kind or other label names under a known name, and a counter without ``_total``, are bugs."""
    metrics = make()
    metrics.count("lunanexa_a_total", {"outcome": "internal"})
    metrics.set("lunanexa_b", 1)
    wrong: list[Callable[[], None]] = [
        lambda: metrics.count("lunanexa_a_total"),
        lambda: metrics.count("lunanexa_a_total", {"dialect": "chat"}),
        lambda: metrics.set("lunanexa_a_total", 1, {"outcome": "internal"}),
        lambda: metrics.observe("lunanexa_b", 1),
        lambda: metrics.count("lunanexa_requests"),
    ]
    for number, use in enumerate(wrong):
        try:
            use()
        except AssertionError:
            continue
        raise RuntimeError(f"wrong use {number} was taken")


async def check_registries_are_apart(make: MakeMetrics) -> None:
    """Two in one process share nothing."""
    first, second = make(), make()
    first.count("lunanexa_requests_total")
    assert "lunanexa_requests_total" not in samples(second)
    second.set("lunanexa_queue_length", 1)
    assert "lunanexa_queue_length" not in samples(first)


CHECKS: Final[tuple[Check, ...]] = (
    check_counter,
    check_labels,
    check_gauge,
    check_histogram,
    check_name_keeps_its_shape,
    check_registries_are_apart,
)
