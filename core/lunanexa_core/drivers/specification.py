"""What is asked of every engine specification before a driver makes a launch plan of it."""

import re
from functools import lru_cache
from typing import Final

import attrs

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.driver import Health, LaunchInput, LaunchRefusal

LOOPBACK: Final = "127.0.0.1"
_URL_CHARACTERS_MAX: Final = 300
_URL = re.compile(r"http://(?:([A-Za-z0-9.-]{1,253})|\[([0-9A-Fa-f:.]{2,45})\])(?::([0-9]{1,5}))?/?\Z")


@attrs.frozen
class EngineAddress:
    """Where an engine answers."""

    host: str
    port: int

    @property
    def on_this_machine(self) -> bool:
        return self.host in (LOOPBACK, "localhost")


def parse_engine_url(url: str) -> EngineAddress | None:
    """The address in ``http://host:port`` (port 80 where it names none), or ``None`` for anything else."""
    # No longer one is an address, and what strangers send must not stay in memory.
    return _parsed(url) if len(url) <= _URL_CHARACTERS_MAX else None


@lru_cache(maxsize=1_024)
def _parsed(url: str) -> EngineAddress | None:
    match = _URL.match(url)
    if match is None:
        return None
    port = int(match[3]) if match[3] else 80
    return EngineAddress(match[1] or match[2], port) if 0 < port < 65_536 else None


def adopted_address(engine: EngineSpec) -> EngineAddress | LaunchRefusal | None:
    """Where an adopted engine answers; ``None`` when the specification is one of an engine to start."""
    if engine.url is None:
        return None
    if engine.binary is not None:
        return LaunchRefusal.URL_AND_BINARY
    return parse_engine_url(engine.url) or LaunchRefusal.BAD_URL


def check_launch(engine: EngineSpec, *, model_needed: bool) -> LaunchRefusal | None:
    """Why ``engine`` can't be started, as far as its specification tells."""
    if not engine.served_name or engine.served_name.startswith("-") or "," in engine.served_name:
        return LaunchRefusal.BAD_SERVED_NAME
    if engine.slots < 1:
        return LaunchRefusal.NO_SLOTS
    texts = (engine.binary or "", engine.model_path or "", engine.served_name, *engine.arguments)
    if any("\0" in text for text in texts):
        return LaunchRefusal.NUL_IN_TEXT
    return _check_paths(engine, model_needed=model_needed)


def _check_paths(engine: EngineSpec, *, model_needed: bool) -> LaunchRefusal | None:
    if engine.binary is None:
        return LaunchRefusal.NO_BINARY
    if not engine.binary.startswith("/"):
        return LaunchRefusal.BINARY_NOT_ABSOLUTE
    if engine.model_path is None:
        return LaunchRefusal.NO_MODEL if model_needed else None
    return None if engine.model_path.startswith("/") else LaunchRefusal.MODEL_NOT_ABSOLUTE


def adopt_only(_order: LaunchInput) -> LaunchRefusal:
    """The ``launch`` of a driver that starts nothing."""
    return LaunchRefusal.ADOPTED_ONLY


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment of every engine: nothing of the agent's own, so that no stray variable configures it."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **extra}


def status_health(status: int, _body: bytes) -> Health:
    """Health of an engine that tells it by status alone: 200 is ready, 503 is loading."""
    match status:
        case 200:
            return Health.READY
        case 503:
            return Health.LOADING
        case _:
            return Health.BROKEN
