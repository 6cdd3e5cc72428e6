"""Both registries pass the one suite."""

import pytest

from lunanexa_adapters.prometheus.metrics import PrometheusMetrics
from lunanexa_ports.conformance import metrics
from lunanexa_simulation.metrics import SimulatedMetrics


@pytest.mark.parametrize("check", metrics.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("make", [SimulatedMetrics, PrometheusMetrics])
async def test_metrics(check: metrics.Check, make: metrics.MakeMetrics) -> None:
    await check(make)
