"""What a node's data listener costs: the same engine process, asked by a gateway's own client in the clear and through
the listener over mutual TLS.

Engine, listener and client are a process each. Both ways take turns, so that other load meets them alike.
"""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import trio

from benchmarks.harness import START_S, HarnessFailed, cpu_s
from benchmarks.report import Options, Report
from lunanexa_adapters.crypto.authority import make_authority
from lunanexa_adapters.crypto.credentials import TlsCredentials
from lunanexa_adapters.http_client.http_client import H11HttpClient
from lunanexa_adapters.system.clock import SystemClock
from lunanexa_core.identity.certificate import terms_at
from lunanexa_core.identity.names import Identity, gateway_identity, node_identity
from lunanexa_core.ids import ClusterId, HolderId, NodeId
from lunanexa_ports.http_client import HttpRequest, TlsPeer

CLUSTER: Final = ClusterId("cl_bench")
START: Final = "start_1_benchmarks"
STREAMS: Final = 16
TOKENS: Final = 256
FIRST_BYTES: Final = 200
"""Streams a round of which only the first byte matters."""
SLOTS: Final = 64
_BIN: Final = Path(sys.executable).parent


@attrs.define
class Way:
    """One way to the engine, and what was measured on it."""

    port: int
    tls: TlsPeer | None
    credentials: TlsCredentials
    pids: tuple[int, ...]
    """Whose processor time counts beside this process's own."""
    kept_ms: list[float] = attrs.Factory(list)
    """To the first byte on a connection that is there."""
    new_ms: list[float] = attrs.Factory(list)
    chunks_s: list[float] = attrs.Factory(list)
    chunk_us: list[float] = attrs.Factory(list)

    async def measure(self, seconds: float) -> None:
        """One round."""
        client = H11HttpClient(credentials=self.credentials)
        await self._first_byte(client)
        for _ in range(FIRST_BYTES):
            self.kept_ms.append(await self._first_byte(client))
        for _ in range(FIRST_BYTES):
            fresh = H11HttpClient(credentials=self.credentials)
            self.new_ms.append(await self._first_byte(fresh))
            await fresh.aclose()
        await self._stream_for(client, seconds)
        await client.aclose()

    async def _first_byte(self, client: H11HttpClient) -> float:
        began_s = time.perf_counter()
        async with client.exchange(self._request(2)) as response:
            chunks = response.chunks()
            await anext(chunks)
            took_s = time.perf_counter() - began_s
            async for _ in chunks:
                pass
        return took_s * 1_000

    async def _stream_for(self, client: H11HttpClient, seconds: float) -> None:
        chunks, used_s, began_s = 0, self._used_s(), time.perf_counter()
        until_s = began_s + seconds

        async def stream() -> None:
            nonlocal chunks
            while time.perf_counter() < until_s:
                async with client.exchange(self._request(TOKENS)) as response:
                    async for piece in response.chunks():
                        chunks += piece.count(b"data: ")

        async with trio.open_nursery() as nursery:
            for _ in range(STREAMS):
                nursery.start_soon(stream)
        self.chunks_s.append(chunks / (time.perf_counter() - began_s))
        self.chunk_us.append((self._used_s() - used_s) / chunks * 1e6)

    def _used_s(self) -> float:
        return time.process_time() + sum(map(cpu_s, self.pids))

    def _request(self, tokens: int) -> HttpRequest:
        document = {
            "model": "reference",
            "stream": True,
            "max_tokens": tokens,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": "What does the sea keep?"}],
        }
        return HttpRequest(
            method="POST",
            host="127.0.0.1",
            port=self.port,
            target="/v1/chat/completions",
            headers=((b"content-type", b"application/json"),),
            body=json.dumps(document).encode(),
            tls=self.tls,
        )


def measure(options: Options) -> Report:
    """All rounds of both ways."""
    with tempfile.TemporaryDirectory(prefix="lunanexa-bench-", dir=options.directory) as name:
        folder = Path(name)
        node, gateway = node_identity(CLUSTER, NodeId("node-1")), gateway_identity(CLUSTER, HolderId("bench"))
        authority = make_authority(SystemClock().now().wall_ms // 1_000)

        def issue(identity: Identity, serial: str, where: Path | None) -> TlsCredentials:
            credentials = TlsCredentials(where)
            credentials.trust([authority.public.certificate])
            terms = terms_at(identity.uri, serial, SystemClock().now().wall_ms)
            credentials.accept(authority.issue(credentials.request(), terms) or "")
            return credentials

        (folder / "identity").mkdir(mode=0o700)
        issue(node, "1", folder / "identity")
        credentials = issue(gateway, "2", None)
        with _engine(folder / "engine.json") as engine_port, _door(folder / "identity", engine_port) as (pid, port):
            direct = Way(engine_port, None, credentials, ())
            door = Way(port, TlsPeer(identity=node.uri, server_name=START), credentials, (pid,))
            trio.run(_measure, (direct, door), options)
    return _report(direct, door)


async def _measure(ways: tuple[Way, Way], options: Options) -> None:
    for _ in range(options.rounds):
        for way in ways:
            await way.measure(options.seconds)


def _report(direct: Way, door: Way) -> Report:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float] = {}

    def add(what: str, before: float, after: float, shown: str) -> None:
        rows.append((what, format(before, shown), format(after, shown), f"x{after / before:.2f}"))
        figures.update({f"{what}: direct": before, f"{what}: data listener": after})

    for what, one, other in (
        ("kept connection: first byte", direct.kept_ms, door.kept_ms),
        ("new connection: first byte", direct.new_ms, door.new_ms),
    ):
        for percent in (50, 99):
            before, after = (statistics.quantiles(found, n=100)[percent - 1] for found in (one, other))
            add(f"{what} p{percent} ms", before, after, ".2f")
    median = statistics.median
    add(f"{STREAMS} streams at once: chunks/s", median(direct.chunks_s), median(door.chunks_s), ",.0f")
    add("CPU us a chunk", median(direct.chunk_us), median(door.chunk_us), ",.1f")
    return Report(
        title="data_door: the engine asked in the clear, and through its node's data listener over mutual TLS",
        columns=("", "direct", "data listener", "ratio"),
        rows=tuple(rows),
        figures=figures,
        notes=("CPU: of the client and of the listener, without the engine; the listener's in steps of 10 ms.",),
    )


@contextlib.contextmanager
def _engine(ready: Path) -> Iterator[int]:
    command = [str(_BIN / "lunanexa-engine"), "--ready-file", str(ready), "--slots", str(SLOTS)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            until_s = time.perf_counter() + START_S
            while not ready.exists():
                if process.poll() is not None or time.perf_counter() > until_s:
                    raise HarnessFailed("the engine did not start")
                time.sleep(0.02)
            yield int(json.loads(ready.read_bytes())["port"])
        finally:
            process.kill()


@contextlib.contextmanager
def _door(identity: Path, engine_port: int) -> Iterator[tuple[int, int]]:
    command = [sys.executable, "-m", "benchmarks.door_peer", str(identity), str(engine_port), START, CLUSTER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise HarnessFailed("the data listener did not start")
            yield process.pid, int(line)
        finally:
            process.kill()
