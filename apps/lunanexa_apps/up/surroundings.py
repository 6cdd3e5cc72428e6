"""What this machine has: programs, the model file, and servers that answer already."""

import os
import shutil
import sys
from collections.abc import Mapping
from typing import Final

import attrs

from lunanexa_apps.up.choice import AdoptedServer, EngineWish, Surroundings
from lunanexa_apps.up.engine_choice import GGUF_MAGIC, program_of
from lunanexa_apps.up.servers import ask_servers
from lunanexa_core.drivers.detection import RecognisedServer
from lunanexa_core.drivers.specification import LOOPBACK
from lunanexa_ports.http_client import HttpClient

PROBE_TIMEOUT_MS: Final = 1_000
ADOPT_TIMEOUT_MS: Final = 10_000
USUAL_PORTS: Final = (11434, 8000, 8080)
"""Of Ollama, vLLM and llama.cpp."""
REFERENCE_PROGRAM: Final = "lunanexa-engine"
LLAMA_PROGRAM: Final = "llama-server"


async def look_around(wish: EngineWish, environment: Mapping[str, str], http: HttpClient) -> Surroundings:
    """Everything that choosing an engine for ``wish`` needs to know."""
    adopted = await ask_servers(wish.adopt, wish.adopt_keys, http, ADOPT_TIMEOUT_MS)
    return attrs.evolve(_look_at_files(wish, environment), adopted=adopted)


def _look_at_files(wish: EngineWish, environment: Mapping[str, str]) -> Surroundings:
    found = Surroundings(
        llama_server=_absolute(shutil.which(LLAMA_PROGRAM, path=environment.get("PATH"))),
        reference_engine=os.path.join(os.path.dirname(os.path.abspath(sys.executable)), REFERENCE_PROGRAM),
        model_head=None if wish.model is None else _head(wish.model),
    )
    program = program_of(wish, found)
    runs = program is not None and os.path.isfile(program) and os.access(program, os.X_OK)
    return attrs.evolve(found, binary_runs=runs)


async def usual_servers(http: HttpClient) -> tuple[AdoptedServer, ...]:
    """Servers that list a model on this machine's usual ports."""
    urls = tuple(f"http://{LOOPBACK}:{port}" for port in USUAL_PORTS)
    asked = await ask_servers(urls, {}, http, PROBE_TIMEOUT_MS)
    return tuple(server for server in asked if isinstance(server.told, RecognisedServer) and server.told.models)


def _head(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read(len(GGUF_MAGIC))
    except OSError:
        return None


def _absolute(path: str | None) -> str | None:
    return None if path is None else os.path.abspath(path)
