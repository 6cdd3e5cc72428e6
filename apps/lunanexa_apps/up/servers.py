"""Asks servers that run already what they are and which models they list."""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import trio

from lunanexa_apps.up.choice import AdoptedServer, Silence
from lunanexa_core.drivers.detection import (
    DEPENDING_ON_FLAGS,
    MODELS_PATH,
    TELLING_PATHS,
    recognise,
    tells_by_refusing,
    with_refusals,
)
from lunanexa_core.drivers.specification import parse_engine_url
from lunanexa_core.workload import Dialect
from lunanexa_ports.errors import PortError
from lunanexa_ports.http_client import HttpClient, HttpRequest

ANSWER_BYTES_MAX: Final = 4 << 20
_Answer = tuple[int, bytes]


async def ask_servers(
    urls: Sequence[str], keys: Mapping[str, str], http: HttpClient, timeout_ms: int
) -> tuple[AdoptedServer, ...]:
    """What answers at each of ``urls`` (each once, in their order); ``keys`` by URL for those that ask for one."""
    found: dict[str, AdoptedServer] = {}

    async def ask(url: str) -> None:
        found[url] = await _Server(url, keys.get(url), http, timeout_ms).ask()

    async with trio.open_nursery() as nursery:
        for url in dict.fromkeys(urls):
            nursery.start_soon(ask, url)
    return tuple(found[url] for url in dict.fromkeys(urls))


@attrs.frozen
class _Server:
    url: str
    key: str | None = attrs.field(repr=False)
    http: HttpClient
    timeout_ms: int

    async def ask(self) -> AdoptedServer:
        """The model list first: what has none is asked nothing else."""
        models = await self._ask(MODELS_PATH)
        told: Silence | None = None
        match models:
            case None:
                told = Silence.NO_ANSWER
            case (401 | 403, _):
                told = Silence.KEY
            case (429 | 502 | 503 | 504, _):
                told = Silence.LOADING
            case (200, body):
                server = recognise({MODELS_PATH: body, **await self._tell()})
                if server is not None and tells_by_refusing(server):
                    server = with_refusals(server, await self._refusals())
                return AdoptedServer(url=self.url, told=server or Silence.NO_LIST)
            case _:
                told = Silence.NO_LIST
        return AdoptedServer(url=self.url, told=told)

    async def _refusals(self) -> dict[Dialect, int]:
        statuses: dict[Dialect, int] = {}
        for dialect in DEPENDING_ON_FLAGS:
            answer = await self._ask(dialect.path, b"{}")
            if answer is not None:
                statuses[dialect] = answer[0]
        return statuses

    async def _tell(self) -> dict[str, bytes]:
        answers: dict[str, bytes] = {}

        async def ask(path: str) -> None:
            answer = await self._ask(path)
            if answer is not None and answer[0] == 200:
                answers[path] = answer[1]

        async with trio.open_nursery() as nursery:
            for path in TELLING_PATHS:
                nursery.start_soon(ask, path)
        return answers

    async def _ask(self, path: str, body: bytes | None = None) -> _Answer | None:
        address = parse_engine_url(self.url)
        if address is None:
            return None
        key = () if self.key is None else ((b"authorization", b"Bearer " + self.key.encode("ascii")),)
        request = HttpRequest(
            method="GET" if body is None else "POST",
            host=address.host,
            port=address.port,
            target=path,
            headers=key if body is None else (*key, (b"content-type", b"application/json")),
            body=body or b"",
            connect_timeout_ms=self.timeout_ms,
        )
        with trio.move_on_after(self.timeout_ms / 1_000):
            try:
                async with self.http.exchange(request) as response:
                    return response.status, await response.read(ANSWER_BYTES_MAX)
            except PortError:
                return None
        return None
