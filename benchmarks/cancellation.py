"""How soon a client's departure reaches the engine, and what is left behind.

A client closes its connection in each phase of a request: in the queue, before the first byte, within the
answer. From that moment on three things are read again and again, one after another: the open files
of the controller, until its connection to the engine is none of them; the engine's count of aborted requests; and
the controller's gauge of requests in progress, which falls when the place is free *and* the receipt durable. The
time when a reading first tells it is noted, so that each figure holds the reading too. A departure from the queue
reaches no engine.
"""

import http.client
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from benchmarks.books import Books, read_books
from benchmarks.harness import HarnessFailed, Installation, Model, Way, running_installation
from benchmarks.load import Address
from benchmarks.report import Options, Report
from benchmarks.visitor import Visitor

DEPARTURES: Final = 100
"""In each phase, of streams and of whole answers each."""
SLOTS: Final = 4
TARGET_MS: Final = 10.0
HANG_MS: Final = 600_000
ITL_MS: Final = 20
TOKENS: Final = 2_000
WAIT_S: Final = 30.0
_CHAT: Final = "/v1/chat/completions"
_QUESTION: Final = [{"role": "user", "content": "What does the sea keep?"}]
_ABORTED: Final = 'finished_reason="abort"'
_RUNNING: Final = "vllm:num_requests_running"
_IN_FLIGHT: Final = "lunanexa_requests_in_flight"


@attrs.define
class Phase:
    """One phase and one kind of answer, with its times in milliseconds."""

    name: str
    closed_ms: list[float] = attrs.Factory(list)
    """Until the controller has closed its connection to the engine."""
    seen_ms: list[float] = attrs.Factory(list)
    """Until the engine has counted the departure."""
    free_ms: list[float] = attrs.Factory(list)
    """Until nothing is held and the receipt is durable."""


class Meter:
    """Reads one page of metrics over one connection, as fast as it is answered."""

    def __init__(self, address: Address, key: str) -> None:
        self._connection = http.client.HTTPConnection(address.host, address.port, timeout=WAIT_S)
        self._headers = {"authorization": f"Bearer {key}"}

    def read(self, *parts: str) -> float:
        """The value of the series whose line holds all ``parts``."""
        self._connection.request("GET", "/metrics", headers=self._headers)
        for line in self._connection.getresponse().read().decode().splitlines():
            if not line.startswith("#") and all(part in line for part in parts):
                return float(line.rpartition(" ")[2])
        raise HarnessFailed(f"no metric {' '.join(parts)}")

    def until(self, holds: Callable[[float], bool], *parts: str) -> float:
        """When the answer had come that tells a value that ``holds``."""
        until_s = time.perf_counter() + WAIT_S
        while (now_s := time.perf_counter()) < until_s:
            if holds(self.read(*parts)):
                return time.perf_counter()
        raise HarnessFailed(f"{' '.join(parts)} did not change until {now_s}")

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _meters(installation: Installation, *models: Model) -> Iterator[list[Meter]]:
    meters = [Meter(model.direct.address, model.direct.key) for model in models]
    meters.append(Meter(installation.address, installation.api_key))
    try:
        yield meters
    finally:
        for meter in meters:
            meter.close()


class Upstream:
    """The controller's connections to one engine: files of a process, so that a look at one costs microseconds."""

    def __init__(self, controller_pid: int, engine: Address) -> None:
        self._files = Path(f"/proc/{controller_pid}/fd")
        self._port = f":{engine.port:04X}"
        self._open: dict[str, str] = {}

    def look(self) -> None:
        """Finds those that are open now."""
        # Columns after proc_pid_net(5): sl, local, remote, state (01 is open), ..., and the inode as the tenth.
        rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        sockets = {f"socket:[{row[9]}]" for row in rows if row[2].endswith(self._port) and row[3] == "01"}
        links = [str(link) for link in self._files.iterdir()]
        self._open = {link: name for link in links if (name := _target(link)) in sockets}
        if not self._open:
            raise HarnessFailed("the controller has no connection to the engine")

    def until_closed(self) -> float:
        """When one of them was seen closed."""
        until_s = time.perf_counter() + WAIT_S
        while time.perf_counter() < until_s:
            if any(_target(link) != name for link, name in self._open.items()):
                return time.perf_counter()
            time.sleep(0.0001)  # Lest the look takes the processor from what it looks at.
        raise HarnessFailed("the controller did not close its connection")


def _target(link: str) -> str | None:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return None


class Client:
    """One raw connection; what it does not read stays in its socket."""

    def __init__(self, way: Way) -> None:
        self._visitor = Visitor(way)
        self._way = way

    async def ask(self, *, stream: bool, tokens: int = TOKENS) -> None:
        document: dict[str, Any] = {"messages": _QUESTION, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
        await self._visitor.send(_CHAT, document)

    async def output(self) -> None:
        """Returns when a piece of the answer is there."""
        seen = b""
        while seen.count(b'"content":') < 2:
            seen += await self._visitor.read()

    async def whole(self) -> bool:
        """Whether the answer is whole."""
        return (await self._visitor.answer()).whole

    def leave(self) -> float:
        """Closes the connection; when."""
        began_s = time.perf_counter()
        self._visitor.leave()
        return began_s


def measure(options: Options) -> Report:
    """All phases, streams and whole answers."""
    with running_installation(options.directory) as installation:
        hanging = installation.deploy("hanging", ttft_ms=HANG_MS, itl_ms=ITL_MS, slots=SLOTS)
        paced = installation.deploy("paced", ttft_ms=ITL_MS, itl_ms=ITL_MS, slots=SLOTS)
        phases = trio.run(_all_phases, installation, hanging, paced)
        faults = trio.run(_rest, installation, hanging, paced)
        books = read_books(installation.store)
    faults += books.faults() + _receipt_faults(books, len(phases) * DEPARTURES + SLOTS)
    return _report(phases, faults)


async def _all_phases(installation: Installation, hanging: Model, paced: Model) -> list[Phase]:
    phases = []
    to_hanging = Upstream(installation.controller_pid, hanging.direct.address)
    to_paced = Upstream(installation.controller_pid, paced.direct.address)
    with _meters(installation, hanging, paced) as (of_hanging, of_paced, of_controller):
        for stream in (True, False):
            kind = "stream" if stream else "whole answer"
            phase = Phase(f"before the first byte, {kind}")
            for _ in range(DEPARTURES):
                await _leave_early(phase, hanging, to_hanging, of_hanging, of_controller, stream=stream)
            phases.append(phase)
            phase = Phase(f"within the answer, {kind}")
            for _ in range(DEPARTURES):
                await _leave_within(phase, paced, to_paced, of_paced, of_controller, stream=stream)
            phases.append(phase)
        holders = [Client(hanging.through) for _ in range(SLOTS)]
        for holder in holders:
            await holder.ask(stream=True)
        of_hanging.until(lambda running: running == SLOTS, _RUNNING)
        for stream in (True, False):
            phase = Phase(f"in the queue, {'stream' if stream else 'whole answer'}")
            for _ in range(DEPARTURES):
                await _leave_queue(phase, installation, hanging, of_controller, stream=stream)
            phases.insert(0 if stream else 1, phase)
        for holder in holders:
            holder.leave()
    return phases


async def _leave_early(
    phase: Phase, model: Model, upstream: Upstream, engine: Meter, controller: Meter, *, stream: bool
) -> None:
    client = Client(model.through)
    await client.ask(stream=stream)
    engine.until(lambda running: running == 1, _RUNNING)
    _time_departure(phase, client, upstream, engine, controller)


async def _leave_within(
    phase: Phase, model: Model, upstream: Upstream, engine: Meter, controller: Meter, *, stream: bool
) -> None:
    client = Client(model.through)
    told = engine.read("vllm:generation_tokens_total")
    await client.ask(stream=stream)
    if stream:
        await client.output()
    else:
        engine.until(lambda tokens: tokens >= told + 2, "vllm:generation_tokens_total")
    _time_departure(phase, client, upstream, engine, controller)


def _time_departure(phase: Phase, client: Client, upstream: Upstream, engine: Meter, controller: Meter) -> None:
    before = engine.read(_ABORTED)
    upstream.look()
    left_s = client.leave()
    phase.closed_ms.append((upstream.until_closed() - left_s) * 1000)
    seen_s = engine.until(lambda aborted: aborted > before, _ABORTED)
    free_s = controller.until(lambda held: held == 0, _IN_FLIGHT)
    phase.seen_ms.append((seen_s - left_s) * 1000)
    phase.free_ms.append((free_s - left_s) * 1000)


async def _leave_queue(
    phase: Phase, installation: Installation, model: Model, controller: Meter, *, stream: bool
) -> None:
    client = Client(model.through)
    await client.ask(stream=stream)
    until_s = time.perf_counter() + WAIT_S
    while installation.queue_of("hanging") != (1, SLOTS):
        if time.perf_counter() > until_s:
            raise HarnessFailed(f"the request does not wait: {installation.queue_of('hanging')}")
    left_s = client.leave()
    free_s = controller.until(lambda held: held == SLOTS, _IN_FLIGHT)
    phase.free_ms.append((free_s - left_s) * 1000)


async def _rest(installation: Installation, hanging: Model, paced: Model) -> list[str]:
    """What is wrong once all have left: something is held, or the next call fails."""
    faults = []
    with closing(Meter(installation.address, installation.api_key)) as meter:
        meter.until(lambda held: held == 0, _IN_FLIGHT)
    for name, model in (("hanging", hanging), ("paced", paced)):
        waiting, running = installation.queue_of(name)
        with closing(Meter(model.direct.address, model.direct.key)) as meter:
            at_engine = meter.read(_RUNNING)
        if waiting or running or at_engine:
            faults.append(f"{name}: {waiting} wait, {running} run, the engine works on {at_engine:.0f}")
    client = Client(paced.through)
    await client.ask(stream=True, tokens=4)
    if not await client.whole():
        faults.append("the next call fails")
    client.leave()
    return faults


def _receipt_faults(books: Books, departures: int) -> list[str]:
    """Each departure has a receipt that says so, with the usage until then: no input in the queue, and the tokens
    that went out within a stream. Nobody has counted those of an answer that is told whole."""
    told = books.departures()
    faults = [] if told.total() == departures else [f"{told.total()} receipts of {departures} departures"]
    expected = {"in the queue": 2 * DEPARTURES, "within the answer": DEPARTURES}
    for phase, count in expected.items():
        if told[phase] != count:
            faults.append(f"{told[phase]} receipts of {count} departures {phase} tell its usage")
    return faults


def _report(phases: list[Phase], faults: list[str]) -> Report:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float] = {}
    for phase in phases:
        cells = [phase.name]
        for what, times_ms in (("closed", phase.closed_ms), ("seen", phase.seen_ms), ("settled", phase.free_ms)):
            if not times_ms:
                cells += ["", ""]
                continue
            p50_ms, p99_ms = statistics.median(times_ms), statistics.quantiles(times_ms, n=100)[98]
            cells += [f"{p50_ms:.2f}", f"{p99_ms:.2f}"]
            figures |= {f"{phase.name}: {what} p50 ms": p50_ms, f"{phase.name}: {what} p99 ms": p99_ms}
        if phase.closed_ms:
            held = figures[f"{phase.name}: closed p99 ms"] < TARGET_MS
            cells.append("held" if held else "not held")
        else:
            cells.append("")
        rows.append(tuple(cells))
    return Report(
        title=f"cancellation: {DEPARTURES} departures in each phase, one at a time",
        columns=(
            *("client leaves", "closed p50 ms", "p99", "stopped p50 ms", "p99", "settled p50 ms", "p99"),
            f"closed p99 < {TARGET_MS:.0f} ms",
        ),
        rows=tuple(rows),
        figures=figures,
        notes=(
            "From the client's close to the reading that first tells that: the connection to the engine is closed;"
            " the engine has counted the request as aborted; place and slot are free and the receipt is durable.",
        ),
        faults=tuple(faults),
    )
