"""All drivers, by the name that a specification gives."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.driver import Driver
from lunanexa_core.drivers.generic_openai import GENERIC_OPENAI
from lunanexa_core.drivers.llama_cpp import LLAMA_CPP
from lunanexa_core.drivers.ollama import OLLAMA
from lunanexa_core.drivers.reference import REFERENCE
from lunanexa_core.drivers.vllm import VLLM
from lunanexa_core.workload import Dialect

DRIVERS: Final[Mapping[str, Driver]] = MappingProxyType(
    {driver.name: driver for driver in (REFERENCE, LLAMA_CPP, VLLM, OLLAMA, GENERIC_OPENAI)}
)


def dialects_of(engine: EngineSpec) -> frozenset[Dialect]:
    """What an engine of a known driver answers to."""
    return DRIVERS[engine.driver].dialects(engine) if engine.dialects is None else frozenset(engine.dialects)
