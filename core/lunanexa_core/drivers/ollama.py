"""Ollama (conduct as of 0.33's sources): adopted where it runs, not started yet.

It serves many models and loads each within the first request for it, before any head of an answer. It has neither
key nor metrics. Bound to loopback it refuses a ``Host`` that is not the machine's own.
Source: https://github.com/ollama/ollama/blob/main/docs/openai.md
"""

from typing import Final

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.driver import Capabilities, Driver
from lunanexa_core.drivers.models_body import identify_by_name
from lunanexa_core.drivers.specification import adopt_only, status_health
from lunanexa_core.workload import Dialect

_DIALECTS: Final = frozenset(
    {
        Dialect.CHAT,
        Dialect.COMPLETIONS,
        Dialect.EMBEDDINGS,
        Dialect.RESPONSES,
        Dialect.MESSAGES,
        Dialect.AUDIO_TRANSCRIPTIONS,
    }
)


def dialects(_engine: EngineSpec) -> frozenset[Dialect]:
    """What it has, as far as its version and the model go."""
    return _DIALECTS


OLLAMA: Final = Driver(
    name="ollama",
    dialects=dialects,
    health_path="/api/version",
    capabilities=Capabilities(unary_departure_seen=True, usage_in_stream=True),
    launch=adopt_only,
    judge_health=status_health,
    identify=identify_by_name,
)
