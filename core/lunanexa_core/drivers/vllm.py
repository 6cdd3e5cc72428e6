"""vLLM (conduct as of 0.33's sources, answers as recorded from 0.32 on a CPU): adopted where it runs, not started yet.

It lists each served name and each LoRA adapter as a model of its own. Which endpoints it registers depends on its
model; the others answer 404. ``/health`` and ``/metrics`` ask for no key, ``/v1`` does when it has one.
Source: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
"""

from typing import Final

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.driver import Capabilities, Driver, MetricMap
from lunanexa_core.drivers.models_body import identify_by_name
from lunanexa_core.drivers.specification import adopt_only, status_health
from lunanexa_core.workload import Dialect


def dialects(_engine: EngineSpec) -> frozenset[Dialect]:
    """What it has, as far as its model goes."""
    return frozenset(Dialect) - {Dialect.AUDIO_SPEECH}


VLLM: Final = Driver(
    name="vllm",
    dialects=dialects,
    health_path="/health",
    metrics_path="/metrics",
    metrics=MetricMap(running="vllm:num_requests_running", waiting="vllm:num_requests_waiting"),
    capabilities=Capabilities(unary_departure_seen=True, usage_in_stream=True),
    launch=adopt_only,
    judge_health=status_health,
    identify=identify_by_name,
)
