"""What this machine has: programs, the model file, and servers that answer already."""

import os
import shutil
import sys
from collections.abc import Mapping
from typing import Final

import attrs
import trio

from lunanexa_apps.up.engine_choice import GGUF_MAGIC, USUAL_SERVERS, EngineWish, Surroundings, program_of
from lunanexa_apps.up.plane import Plane
from lunanexa_core.drivers.specification import LOOPBACK, parse_engine_url
from lunanexa_ports.errors import PortError
from lunanexa_ports.http_client import HttpClient

PROBE_TIMEOUT_MS: Final = 1_000
ADOPT_TIMEOUT_MS: Final = 10_000
REFERENCE_PROGRAM: Final = "lunanexa-engine"
LLAMA_PROGRAM: Final = "llama-server"


async def look_around(wish: EngineWish, environment: Mapping[str, str], http: HttpClient) -> Surroundings:
    """Everything that choosing an engine for ``wish`` needs to know."""
    adopted = None if wish.adopt is None else await listed_models(wish.adopt, http, ADOPT_TIMEOUT_MS)
    return attrs.evolve(_look_at_files(wish, environment), adopted_models=adopted)


def _look_at_files(wish: EngineWish, environment: Mapping[str, str]) -> Surroundings:
    found = Surroundings(
        llama_server=_absolute(shutil.which(LLAMA_PROGRAM, path=environment.get("PATH"))),
        reference_engine=os.path.join(os.path.dirname(os.path.abspath(sys.executable)), REFERENCE_PROGRAM),
        model_head=None if wish.model is None else _head(wish.model),
    )
    program = program_of(wish, found)
    runs = program is not None and os.path.isfile(program) and os.access(program, os.X_OK)
    return attrs.evolve(found, binary_runs=runs)


async def usual_servers(http: HttpClient) -> tuple[str, ...]:
    """URLs of OpenAI-compatible servers that answer on this machine's usual ports, to be offered."""
    found: dict[int, str] = {}

    async def probe(port: int) -> None:
        url = f"http://{LOOPBACK}:{port}"
        if await listed_models(url, http, PROBE_TIMEOUT_MS):
            found[port] = url

    async with trio.open_nursery() as nursery:
        for port in USUAL_SERVERS:
            nursery.start_soon(probe, port)
    return tuple(found[port] for port in USUAL_SERVERS if port in found)


async def listed_models(url: str, http: HttpClient, timeout_ms: int) -> tuple[str, ...] | None:
    """The ids in ``GET /v1/models``; ``None`` when no OpenAI-compatible server answers there in time."""
    address = parse_engine_url(url)
    if address is None:
        return None
    answer: object = None
    with trio.move_on_after(timeout_ms / 1000):
        try:
            answer = await Plane(http=http, host=address.host, port=address.port).ask("GET", "/v1/models")
        except PortError:
            return None
    cards = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(cards, list):
        return None
    ids = [card.get("id") for card in cards if isinstance(card, dict)]
    return tuple(name for name in ids if isinstance(name, str) and name)


def _head(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read(len(GGUF_MAGIC))
    except OSError:
        return None


def _absolute(path: str | None) -> str | None:
    return None if path is None else os.path.abspath(path)
