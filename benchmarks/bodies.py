"""What a request body costs on its way through the gateway, by size and by what it consists of.

The parts of the way that a body's size matters to, put together as in a controller: the server reads it, the head is
looked at and the whole hashed, the model's name is exchanged, and the client sends it on. A client and an engine
that does nothing with it are another process. Beside it the least that a gateway could do: to read the same bytes
and hash them once. A task that wants to run every millisecond tells how long the loop was held.
"""

import hashlib
import json
import statistics
import subprocess
import sys
import time
from typing import Final

import attrs
import trio

from benchmarks.body_peer import KINDS
from benchmarks.harness import HarnessFailed
from benchmarks.report import Options, Report
from lunanexa_adapters.asgi.body_room import BodyRoom
from lunanexa_adapters.asgi.exchange import Exchange
from lunanexa_adapters.http_client.http_client import H11HttpClient
from lunanexa_adapters.http_server.listeners import addresses, open_listeners
from lunanexa_adapters.http_server.serve import serve_http
from lunanexa_adapters.system.workers import SystemWorkers
from lunanexa_apps.controller.gateway.asking import Asking, read_call
from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_core.ids import RequestId
from lunanexa_core.openai.head import splice_request
from lunanexa_core.outcomes import Refusal
from lunanexa_core.terms import Terms
from lunanexa_core.workload import Dialect
from lunanexa_ports.asgi import Receive, Scope, Send
from lunanexa_ports.gateway import InferenceCall
from lunanexa_ports.http_client import HttpRequest

SIZES: Final = {"1 KB": 1_000, "220 KB": 220_000, "5 MB": 5_000_000, "32 MiB": 32 * 1024 * 1024}
TICK_S: Final = 0.001
LIMIT_BYTES: Final = 64 * 1024 * 1024


@attrs.define
class Ticks:
    """The longest that the loop was held since the last look."""

    held_s: float = 0.0

    async def run(self) -> None:
        while True:
            began_s = time.perf_counter()
            await trio.sleep(TICK_S)
            self.held_s = max(self.held_s, time.perf_counter() - began_s - TICK_S)

    def take_ms(self) -> float:
        held_s, self.held_s = self.held_s, 0.0
        return held_s * 1_000


class Gateway:
    """``/once`` reads and hashes a body; ``/through`` brings it to the engine."""

    def __init__(self, engine_port: int) -> None:
        self._engine_port = engine_port
        self._workers = SystemWorkers()
        self._client = H11HttpClient()
        self._settings = GatewaySettings()

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send, RequestId("req_1"), BodyRoom(1 << 30))
        body = await exchange.body(LIMIT_BYTES)
        assert not isinstance(body, Refusal), body
        if exchange.path == "/once":
            await self._hash(body)
        else:
            await self._relay(body)
        await exchange.send_whole(200, b"application/json", b"{}")

    async def _hash(self, body: bytes) -> None:
        if len(body) > self._settings.offload_bytes:
            await self._workers.run(lambda: hashlib.sha256(body).digest())
        else:
            hashlib.sha256(body).digest()

    async def _relay(self, body: bytes) -> None:
        call = InferenceCall(
            request=RequestId("req_1"),
            dialect=Dialect.CHAT,
            api_key="x",
            terms=Terms(),
            body=body,
            received_mono_ms=0,
        )
        asking = await read_call(call, self._settings, self._workers)
        assert isinstance(asking, Asking), asking
        request = HttpRequest(
            method="POST",
            host="127.0.0.1",
            port=self._engine_port,
            target="/v1/chat/completions",
            more=splice_request(asking.head, asking.body, served_name="served", include_usage=False),
        )
        async with self._client.exchange(request) as response:
            await response.read(100)


def measure(options: Options) -> Report:
    """All kinds and sizes, the two ways in turn."""
    command = [sys.executable, "-m", "benchmarks.body_peer"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as peer:
        try:
            return trio.run(_measure, peer, options.rounds)
        finally:
            peer.kill()


async def _measure(peer: "subprocess.Popen[str]", rounds: int) -> Report:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float] = {}
    listeners = await open_listeners("127.0.0.1", 0)
    port = addresses(listeners)[0][1]
    ticks, faults = Ticks(), list[BaseException]()

    async def ask(target: str, kind: str, size_bytes: int) -> tuple[float, float]:
        ticks.take_ms()
        took_ms = float(await trio.to_thread.run_sync(_order, peer, json.dumps([port, target, kind, size_bytes])))
        return took_ms, ticks.take_ms()

    async with trio.open_nursery() as nursery:
        app = Gateway(int(await trio.to_thread.run_sync(_line, peer)))
        await nursery.start(
            lambda task_status: serve_http(
                app, listeners, render_error=lambda _: ([], b""), on_fault=faults.append, task_status=task_status
            )
        )
        nursery.start_soon(ticks.run)
        for kind in KINDS:
            for size, size_bytes in SIZES.items():
                once, through = [], []
                for _ in range(rounds):
                    once.append(await ask("/once", kind, size_bytes))
                    through.append(await ask("/through", kind, size_bytes))
                once_ms, through_ms = (statistics.median(took for took, _ in way) for way in (once, through))
                held_ms = max(held for _, held in through)
                ratio = through_ms / once_ms
                rows.append(
                    (f"{kind}, {size}", f"{once_ms:.1f}", f"{through_ms:.1f}", f"x{ratio:.1f}", f"{held_ms:.1f}")
                )
                figures |= {f"{kind}, {size}: ms": through_ms, f"{kind}, {size}: longest hold ms": held_ms}
        nursery.cancel_scope.cancel("all is measured")
    return Report(
        title="bodies: what a request body costs on its way through the gateway",
        columns=("body", "read and hash once ms", "through ms", "ratio", "longest hold of the loop ms"),
        rows=tuple(rows),
        figures=figures,
        faults=tuple(map(repr, faults)),
    )


def _order(peer: "subprocess.Popen[str]", line: str) -> str:
    assert peer.stdin is not None
    peer.stdin.write(line + "\n")
    peer.stdin.flush()
    return _line(peer)


def _line(peer: "subprocess.Popen[str]") -> str:
    assert peer.stdout is not None
    line = peer.stdout.readline()
    if not line:
        raise HarnessFailed("the other process has ended")
    return line
