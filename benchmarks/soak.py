"""Tens of thousands of mixed requests: what they leave behind in memory, in the books and in the counters.

Whole answers, streams, clients that leave in every phase, clients that are wrong, engines that are killed.
It fails when the resident memory of controller or node agent grew by more than a tenth after the first tenth
of the requests, when an admitted request has no receipt or two, or when anything is held at rest.
"""

import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from benchmarks.books import Books, read_books
from benchmarks.harness import Installation, Model, Way, cpu_s, running_installation
from benchmarks.report import Options, Report
from benchmarks.visitor import Cut, Visitor

WORKERS: Final = 32
SLOW_SLOTS: Final = 6
SLOW_TOKENS: Final = 8
TTFT_MS: Final = 60
ITL_MS: Final = 8
LEAVES_WITHIN_MS: Final = 200
GROWTH_PERMILLE_MAX: Final = 100
CRASHES_PERMILLE: Final = (50, 300, 550, 800)
"""After how many of a thousand requests an engine is killed, the fast and the slow one in turn."""
SAMPLES: Final = 10
REST_S: Final = 30.0
_FAULTS_SHOWN: Final = 10
_CHAT: Final = "/v1/chat/completions"
_QUESTION: Final = [{"role": "user", "content": "What does the sea keep?"}]
_BUSY: Final = frozenset((429, 502, 503))
"""What is honest while an engine is killed and started again."""

KINDS: Final = {
    "whole": 35,
    "stream": 20,
    "slow stream": 10,
    "leaves early": 12,
    "leaves early, unary": 6,
    "leaves the stream": 7,
    "wrong key": 2,
    "no JSON": 2,
    "unknown model": 2,
    "refused by the engine": 2,
    "unknown route": 2,
}
_WRONG: Final = {"wrong key": 401, "no JSON": 400, "unknown model": 404, "refused by the engine": 400,
                 "unknown route": 404}  # fmt: skip


@attrs.frozen
class Sample:
    """What two processes hold."""

    requests: int
    controller_mib: float
    node_mib: float
    controller_files: int
    node_files: int


@attrs.define
class Soak:
    """One run under way."""

    installation: Installation
    fast: Model
    slow: Model
    requests: int
    begun: int = 0
    ended: int = 0
    kills: int = 0
    counts: Counter[tuple[str, str]] = attrs.Factory(Counter)
    samples: list[Sample] = attrs.Factory(list)
    faults: list[str] = attrs.Factory(list)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(WORKERS):
                nursery.start_soon(self._work)

    async def _work(self) -> None:
        visitors = {"fast": Visitor(self.fast.through), "slow": Visitor(self.slow.through)}
        crashes = {self.requests * permille // 1_000: index for index, permille in enumerate(CRASHES_PERMILLE)}
        while self.begun < self.requests:
            number = self.begun
            self.begun += 1
            if number in crashes:
                await trio.to_thread.run_sync(self._kill, ("default", "slow")[crashes[number] % 2])
            luck = random.Random(number)
            (kind,) = luck.choices(list(KINDS), list(KINDS.values()))
            visitor = visitors["slow" if "leaves" in kind or "slow" in kind else "fast"]
            try:
                ended = await self._visit(kind, visitor, luck)
            except Cut:
                ended = "cut"
                self.faults.append(f"request {number} ({kind}): the connection was cut")
            self.counts[kind, ended] += 1
            self._count()

    def _kill(self, deployment: str) -> None:
        pid = self.installation.serving_pid(deployment)
        if pid is None:
            self.faults.append(f"there was no engine of {deployment} to kill")
            return
        os.kill(pid, signal.SIGKILL)
        self.kills += 1

    def _count(self) -> None:
        self.ended += 1
        if self.ended % (self.requests // SAMPLES) == 0:
            self.samples.append(_sample(self.installation, self.ended))

    async def _visit(self, kind: str, visitor: Visitor, luck: random.Random) -> str:
        if kind in _WRONG:
            return await self._be_wrong(kind, visitor)
        document = {"messages": _QUESTION, "max_tokens": SLOW_TOKENS, "ignore_eos": True, "stream": "stream" in kind}
        if not kind.startswith("leaves"):
            await visitor.send(_CHAT, document)
            told = await visitor.answer()
            if told.whole:
                return "whole"
            if told.status not in (200, *_BUSY):
                self.faults.append(f"{kind}: status {told.status}")
            await trio.sleep(luck.uniform(0.3, 0.8))  # Less than Retry-After says, and more than nothing.
            return "broken off" if told.status == 200 else str(told.status)
        streams = kind != "leaves early, unary"
        await visitor.send(_CHAT, {**document, "stream": streams})
        seen = b""
        patience_s = luck.uniform(0, LEAVES_WITHIN_MS / 1000) if kind != "leaves the stream" else 10
        pieces = luck.randint(1, SLOW_TOKENS - 2)
        with trio.move_on_after(patience_s):
            while seen.count(b'"content":') < pieces and not seen.endswith(b"0\r\n\r\n"):
                seen += await visitor.read()
        visitor.leave(reset=luck.random() < 0.5)
        return "left before a byte" if not seen else "left after output"

    async def _be_wrong(self, kind: str, visitor: Visitor) -> str:
        await visitor.send_bytes(_wrong(kind, visitor.way))
        told = await visitor.answer()
        allowed = {_WRONG[kind], *(_BUSY if kind == "refused by the engine" else ())}
        if told.status not in allowed:
            self.faults.append(f"{kind}: status {told.status}")
        return str(told.status)


def measure(options: Options) -> Report:
    """One soak of ``options.requests`` requests."""
    with running_installation(options.directory) as installation:
        fast = installation.first_model()
        slow = installation.deploy("slow", ttft_ms=TTFT_MS, itl_ms=ITL_MS, slots=SLOW_SLOTS)
        soak = Soak(installation, fast, slow, options.requests)
        before_s = cpu_s(installation.controller_pid)
        took_s = trio.run(_timed, soak)
        used_s = cpu_s(installation.controller_pid) - before_s
        trio.run(_rest, soak)

        soak.samples.append(_sample(installation, soak.ended))
        books = read_books(installation.store)
    soak.faults += books.faults()
    return _report(soak, books, took_s, used_s)


async def _timed(soak: Soak) -> float:
    began_s = trio.current_time()
    await soak.run()
    return trio.current_time() - began_s


async def _rest(soak: Soak) -> None:
    """Nothing may be held when nobody asks: by the controller's count, its gauge and the engines'."""
    held: dict[str, Any] = {}
    with trio.move_on_after(REST_S):
        while not held or any(map(any, held.values())):
            held = await trio.to_thread.run_sync(_held, soak)
            await trio.sleep(0.1)
    soak.faults += [f"{name} still counts {numbers}" for name, numbers in held.items() if any(numbers)]
    for model in ("default", "slow"):
        found = soak.installation.serving_pid(model)
        if found is None:
            soak.faults.append(f"{model} does not serve at the end")
    visitor = Visitor(soak.fast.through)
    await visitor.send(_CHAT, {"messages": _QUESTION, "max_tokens": 4})
    if not (await visitor.answer()).whole:
        soak.faults.append("the next call fails")
    visitor.leave()


def _held(soak: Soak) -> dict[str, tuple[float, ...]]:
    installation = soak.installation
    held: dict[str, tuple[float, ...]] = {"gateway": (installation.gauge("lunanexa_requests_in_flight"),)}
    for name in ("default", "slow"):
        held[name] = installation.queue_of(name)
    return held


def _wrong(kind: str, way: Way) -> bytes:
    document: dict[str, Any] = {"messages": _QUESTION, "max_tokens": 4}
    match kind:
        case "wrong key":
            return attrs.evolve(way, key="lnx_wrong").post(_CHAT, document)
        case "unknown model":
            return attrs.evolve(way, model="nothing-of-this-name").post(_CHAT, document)
        case "unknown route":
            return way.post("/v1/nothing", document)
        case "refused by the engine":
            return way.post(_CHAT, {**document, "messages": [{"role": "nobody"}]})
        case _:
            return way.post(_CHAT, document).replace(b'"messages":', b'"messages" ')  # as long as it says, no JSON


def _sample(installation: Installation, requests: int) -> Sample:
    controller, node = installation.controller_pid, installation.node_pid
    return Sample(requests, _resident_mib(controller), _resident_mib(node), _files(controller), _files(node))


def _resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} tells no resident memory")


def _files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _report(soak: Soak, books: Books, took_s: float, used_s: float) -> Report:
    faults, first, last = soak.faults, soak.samples[0], soak.samples[-1]
    for name, before, after in (
        ("controller", first.controller_mib, last.controller_mib),
        ("node agent", first.node_mib, last.node_mib),
    ):
        if after * 1_000 > before * (1_000 + GROWTH_PERMILLE_MAX):
            faults.append(f"the {name} grew from {before:.1f} to {after:.1f} MiB")
    rows = [
        (
            f"{one.requests:,} requests" if index < len(soak.samples) - 1 else "at rest",
            *(f"{one.controller_mib:.1f}", f"{one.node_mib:.1f}", str(one.controller_files), str(one.node_files)),
        )
        for index, one in enumerate(soak.samples)
    ]
    ends: Counter[str] = Counter()
    for (kind, ended), count in soak.counts.items():
        ends[f"{kind}: {ended}"] += count
    shown = tuple(faults[:_FAULTS_SHOWN])
    if len(faults) > len(shown):
        shown += (f"and {len(faults) - len(shown)} more",)
    return Report(
        title=f"soak: {soak.ended:,} requests in {took_s:.0f} s, {soak.kills} engines killed",
        columns=("resident memory, open files", "controller MiB", "node MiB", "controller files", "node files"),
        rows=tuple(rows),
        figures={
            "requests": soak.ended,
            "seconds": took_s,
            "controller_cpu_s": used_s,
            "controller_first_mib": first.controller_mib,
            "controller_last_mib": last.controller_mib,
            "node_first_mib": first.node_mib,
            "node_last_mib": last.node_mib,
            "admitted": len(books.admitted),
            "receipts": sum(map(len, books.receipts.values())),
            "journal_rows": books.rows,
        },
        notes=(
            "As clients saw it. " + "; ".join(f"{name} {count:,}" for name, count in sorted(ends.items())) + ".",
            f"Admitted {len(books.admitted):,}, receipts {sum(map(len, books.receipts.values())):,}: "
            + "; ".join(f"{name} {count:,}" for name, count in sorted(books.states().items()))
            + ".",
            "Clients left "
            + "; ".join(f"{name} {count:,}" for name, count in sorted(books.departures().items()))
            + ".",
        ),
        faults=shown,
    )
