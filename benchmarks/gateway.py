"""What the way through LunaNexa costs, against the same engine process called directly, in one run.

Rounds of both ways are interleaved, so that another load on the machine meets them alike: the ratios are
the result, the absolute figures belong to this machine. Rates are medians of the rounds, percentiles are
taken over all of them.
"""

import statistics
from collections.abc import Callable
from typing import Any, Final

import attrs

from benchmarks.answers import body_of, events_of, text_events
from benchmarks.harness import Model, Way, cpu_s, running_installation
from benchmarks.load import Run, drive
from benchmarks.report import Options, Report
from benchmarks.streams_200 import lags_of

TARGET: Final = "/v1/chat/completions"
MESSAGES: Final = [{"role": "user", "content": "What does the sea keep?"}]
ANSWER_TOKENS: Final = 8
STREAM_TOKENS: Final = 256
STREAMS: Final = 16
PACED_STREAMS: Final = 32
TTFT_MS: Final = 20
ITL_MS: Final = 20
SECONDS_A_WARM_UP: Final = 0.5


@attrs.define
class Samples:
    """One measure on one way, over all rounds."""

    rates: list[float] = attrs.Factory(list)
    first_ms: list[float] = attrs.Factory(list)
    whole_ms: list[float] = attrs.Factory(list)
    lags_ms: list[float] = attrs.Factory(list)
    units: int = 0
    controller_s: float = 0.0
    engine_s: float = 0.0


@attrs.frozen
class Measure:
    """``unit``: what is counted, and what processor time is divided by."""

    name: str
    unit: str
    connections: int
    document: dict[str, Any]
    collect: Callable[[Run, Samples], int]
    paced: bool = False


def _collect_whole(run: Run, samples: Samples) -> int:
    for call in run.calls:
        body_of(call)
    in_time = [call for call in run.calls if call.ended_s <= run.until_s]
    samples.rates.append(len(in_time) / (run.until_s - run.began_s))
    samples.whole_ms += [(call.ended_s - call.sent_s) * 1000 for call in run.calls]
    return len(run.calls)


def _collect_short(run: Run, samples: Samples) -> int:
    for call in run.calls:
        events_of(call)
    samples.first_ms += [(call.first_s - call.sent_s) * 1000 for call in run.calls]
    return len(run.calls)


def _collect_stream(run: Run, samples: Samples) -> int:
    times = [arrived_s for call in run.calls for arrived_s, _ in text_events(events_of(call))]
    # Past ``until_s`` connections fall idle one after another; that part says nothing of the full load.
    samples.rates.append(sum(time_s <= run.until_s for time_s in times) / (run.until_s - run.began_s))
    return len(times)


def _collect_paced(run: Run, samples: Samples) -> int:
    tokens = 0
    for call in run.calls:
        lags = lags_of(call, ttft_ms=TTFT_MS, itl_ms=ITL_MS)
        samples.lags_ms += lags.chunks
        tokens += len(lags.chunks)
    return tokens


_SMALL: Final = {"messages": MESSAGES, "max_tokens": ANSWER_TOKENS, "ignore_eos": True, "seed": 1}
_LONG: Final = {"messages": MESSAGES, "max_tokens": STREAM_TOKENS, "ignore_eos": True, "seed": 1, "stream": True}
_SHORT: Final = {**_SMALL, "stream": True}
MEASURES: Final = (
    Measure("unary, 1 connection", "requests", 1, _SMALL, _collect_whole),
    Measure("unary, 16 connections", "requests", 16, _SMALL, _collect_whole),
    Measure("short streams, 1 connection", "streams", 1, _SHORT, _collect_short),
    Measure(f"stream, {STREAMS} at once, unpaced", "chunks", STREAMS, _LONG, _collect_stream),
    Measure("stream, 1 at once, paced", "chunks", 1, _LONG, _collect_paced, True),
    Measure(f"stream, {PACED_STREAMS} at once, paced", "chunks", PACED_STREAMS, _LONG, _collect_paced, True),
)


def measure(options: Options) -> Report:
    """All measures on both ways."""
    found: dict[tuple[str, bool], Samples] = {}
    with running_installation(options.directory) as installation:
        fast = installation.first_model()
        paced = installation.deploy_paced(ttft_ms=TTFT_MS, itl_ms=ITL_MS)
        for way in (fast.direct, fast.through):
            for one in MEASURES:
                if not one.paced:
                    _drive(way, one, SECONDS_A_WARM_UP)
        for round_number in range(options.rounds):
            for one in MEASURES:
                model = paced if one.paced else fast
                # Which way comes first alternates, lest one always runs on a machine that the other has warmed.
                for through in (False, True) if round_number % 2 == 0 else (True, False):
                    samples = found.setdefault((one.name, through), Samples())
                    _round(model, one, options.seconds, through, installation.controller_pid, samples)
    return _report(found)


def _round(model: Model, one: Measure, seconds: float, through: bool, controller_pid: int, samples: Samples) -> None:
    controller_s, engine_s = cpu_s(controller_pid), cpu_s(model.engine_pid)
    run = _drive(model.through if through else model.direct, one, seconds)
    samples.controller_s += cpu_s(controller_pid) - controller_s
    samples.engine_s += cpu_s(model.engine_pid) - engine_s
    samples.units += one.collect(run, samples)


def _drive(way: Way, one: Measure, seconds: float) -> Run:
    request = way.post(TARGET, one.document)
    if one.paced:
        # As many whole streams as it takes: their length is set by the engine.
        stream_s = (TTFT_MS + STREAM_TOKENS * ITL_MS) / 1000
        count = one.connections * max(1, round(seconds / stream_s))
        return drive(way.address, lambda _: request, connections=one.connections, count=count)
    return drive(way.address, lambda _: request, connections=one.connections, seconds=seconds)


def _report(found: dict[tuple[str, bool], Samples]) -> Report:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float] = {}
    for one in MEASURES:
        direct, through = found[one.name, False], found[one.name, True]
        table = _Rows(one.name, rows, figures)
        if direct.rates:
            table.rate(f"{one.unit}/s", direct.rates, through.rates)
        for what, before, after in (
            ("answer", direct.whole_ms, through.whole_ms),
            ("first byte", direct.first_ms, through.first_ms),
            ("chunk lag", direct.lags_ms, through.lags_ms),
        ):
            if before:
                table.latency(what, before, after)
        table.cpu(one.unit.removesuffix("s"), through)
    return Report(
        title="gateway: the engine called directly, and the same engine process through LunaNexa",
        columns=("", "engine", "LunaNexa", "ratio", "added"),
        rows=tuple(rows),
        figures=figures,
        notes=(
            f"Unary answers and short streams have {ANSWER_TOKENS} tokens, the other streams {STREAM_TOKENS};"
            f" paced: one token every {ITL_MS} ms.",
            "Chunk lag: how much later than the most punctual token of its stream each one came.",
            "CPU: of the engine process and of the controller process, both while LunaNexa was in between.",
        ),
    )


@attrs.frozen
class _Rows:
    """Adds the rows of one measure."""

    name: str
    rows: list[tuple[str, ...]]
    figures: dict[str, float]

    def rate(self, unit: str, direct: list[float], through: list[float]) -> None:
        before, after = statistics.median(direct), statistics.median(through)
        self._add(unit, before, after, f"{before:,.0f}", f"{after:,.0f}", "")

    def latency(self, what: str, direct: list[float], through: list[float]) -> None:
        for percent in (50, 99):
            before, after = _percentile(direct, percent), _percentile(through, percent)
            added = f"{after - before:+.2f} ms"
            self._add(f"{what} p{percent} ms", before, after, f"{before:.2f}", f"{after:.2f}", added)

    def cpu(self, unit: str, through: Samples) -> None:
        before, after = through.engine_s / through.units * 1e6, through.controller_s / through.units * 1e6
        self._add(f"CPU us a {unit}", before, after, f"{before:,.0f}", f"{after:,.0f}", "")

    def _add(self, what: str, before: float, after: float, *cells: str) -> None:
        self.figures[f"{self.name}: {what}: engine"] = before
        self.figures[f"{self.name}: {what}: LunaNexa"] = after
        shown_before, shown_after, added = cells
        ratio = f"x{after / before:.2f}" if before > 0 else ""
        self.rows.append((f"{self.name}: {what}", shown_before, shown_after, ratio, added))


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1] if len(values) > 1 else values[0]
