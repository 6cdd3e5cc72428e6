"""All drivers, by the name that a specification gives."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lunanexa_core.drivers.driver import Driver
from lunanexa_core.drivers.generic_openai import GENERIC_OPENAI
from lunanexa_core.drivers.llama_cpp import LLAMA_CPP
from lunanexa_core.drivers.reference import REFERENCE

DRIVERS: Final[Mapping[str, Driver]] = MappingProxyType(
    {driver.name: driver for driver in (REFERENCE, LLAMA_CPP, GENERIC_OPENAI)}
)
