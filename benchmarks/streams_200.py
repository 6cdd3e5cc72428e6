"""200 streams at the same time, and not one cut or wrong byte.

Each stream has a prompt and a seed of its own. What the engine answers to the same request directly, one
after another, is what must come through LunaNexa, byte by byte but for the identifier and the time of
creation in each event. The HTTP framing, the form of each event and ``[DONE]`` are checked too.
"""

import re
import statistics
from typing import Any, Final

import attrs

from benchmarks.answers import WrongAnswer, body_of, events_of, text_events
from benchmarks.harness import Way, cpu_s, running_installation
from benchmarks.load import Call, LoadFailed, drive
from benchmarks.report import Options, Report

STREAMS: Final = 200
TOKENS: Final = 80
TTFT_MS: Final = 500
ITL_MS: Final = 100
TARGET: Final = "/v1/chat/completions"
_FAULTS_SHOWN: Final = 5
_CHANGING: Final = re.compile(rb'^data: \{"id":"[^"]+","object":"chat\.completion\.chunk","created":\d+,')


def measure(options: Options) -> Report:
    """One run; its length is set by the pacing of the engine."""
    with running_installation(options.directory) as installation:
        reference = installation.first_model()
        paced = installation.deploy_paced(ttft_ms=TTFT_MS, itl_ms=ITL_MS)
        # The engine without pacing says in no time what the paced one must say. LunaNexa asks for usage, to book
        # it, and keeps the event that bears it from callers who did not.
        asked = drive(
            reference.direct.address,
            lambda number: _request(reference.direct, number, stream_options={"include_usage": True}),
            connections=1,
            count=STREAMS,
        )
        expected = [_body(call, but_usage=True) for call in asked.calls]
        before_s = cpu_s(installation.controller_pid)
        try:
            run = drive(
                paced.through.address,
                lambda number: _request(paced.through, number),
                connections=STREAMS,
                count=STREAMS,
            )
        except LoadFailed as error:
            return _report({}, (f"a stream was cut: {error}",))
        cpu_used_s = cpu_s(installation.controller_pid) - before_s
    faults: list[str] = []
    lags: list[Lags] = []
    for call, wanted in zip(run.calls, expected, strict=True):
        faults += _faults(call, _renamed(wanted, reference.direct.model, paced.through.model))
        if not faults:
            lags.append(lags_of(call, ttft_ms=TTFT_MS, itl_ms=ITL_MS))
    together = max(call.first_s for call in run.calls) < min(call.ended_s for call in run.calls)
    if not together:
        faults.append("the streams did not all run at the same time")
    if faults:
        return _report({"wrong_streams": len(faults)}, tuple(faults))
    first = statistics.quantiles([one.first for one in lags], n=100)
    chunks_ms = [late_ms for one in lags for late_ms in one.chunks]
    chunks = statistics.quantiles(chunks_ms, n=100)
    return _report(
        {
            "streams": len(run.calls),
            "tokens": len(chunks_ms),
            "body_bytes": sum(len(body_of(call)) for call in run.calls),
            "seconds": max(call.ended_s for call in run.calls) - run.began_s,
            "first_token_late_p50_ms": first[49],
            "first_token_late_p99_ms": first[98],
            "chunk_lag_p50_ms": chunks[49],
            "chunk_lag_p99_ms": chunks[98],
            "controller_cpu_us_a_token": cpu_used_s / len(chunks_ms) * 1e6,
        },
        (),
    )


@attrs.frozen
class Lags:
    """One stream's tokens against the engine's own schedule, in milliseconds. ``first``: how long after its time,
    counted from when the request was sent, the first token came. ``chunks``: how much later than the stream's
    most punctual one each came, so that a late start is not counted again with every token."""

    first: float
    chunks: list[float]


def lags_of(call: Call, *, ttft_ms: float, itl_ms: float) -> Lags:
    """The lags of one stream of an engine that was started with this pacing."""
    arrived = [(arrived_s - call.sent_s) * 1000 for arrived_s, _ in text_events(events_of(call))]
    late = [arrived_ms - ttft_ms - index * itl_ms for index, arrived_ms in enumerate(arrived)]
    return Lags(late[0], [late_ms - min(late) for late_ms in late])


def _request(way: Way, number: int, **more: Any) -> bytes:
    return way.post(
        TARGET,
        {
            "messages": [{"role": "user", "content": f"Tell me story {number} of the sea."}],
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "seed": 1_000 + number,
            "stream": True,
            **more,
        },
    )


def _body(call: Call, *, but_usage: bool = False) -> bytes:
    """A body in the form that is compared; raises where it is none of a whole stream."""
    events = [event.data for event in events_of(call) if not (but_usage and b'"choices":[]' in event.data)]
    return b"".join(_CHANGING.sub(b"data: {", event) for event in events)


def _renamed(body: bytes, old: str, new: str) -> bytes:
    """The body as the paced engine says it: under its own name."""
    return body.replace(f'"model":"{old}"'.encode(), f'"model":"{new}"'.encode())


def _faults(call: Call, wanted: bytes) -> list[str]:
    try:
        got = _body(call)
    except WrongAnswer as error:
        return [str(error)]
    if got == wanted:
        return []
    at = next((index for index, (one, other) in enumerate(zip(got, wanted, strict=False)) if one != other), None)
    place = min(len(got), len(wanted)) if at is None else at
    return [f"stream {call.number} differs at byte {place}: {got[place : place + 60]!r}, not {wanted[place:][:60]!r}"]


def _report(figures: dict[str, float], faults: tuple[str, ...]) -> Report:
    shown = faults[:_FAULTS_SHOWN]
    if len(faults) > len(shown):
        shown += (f"and {len(faults) - len(shown)} more",)
    verdict = "wrong" if faults else "none cut, no wrong byte"
    rows = [
        (name.replace("_", " "), f"{value:,.1f}" if value % 1 else f"{value:,.0f}") for name, value in figures.items()
    ]
    return Report(
        title=f"streams_200: {STREAMS} streams at the same time, {TOKENS} tokens each, one every {ITL_MS} ms",
        columns=("", "value"),
        rows=(*rows, ("verdict", verdict)),
        figures=figures,
        notes=(
            "First token: how long after the engine's schedule, counted from the request, it came: all of them are"
            " sent at once.",
            "Chunk lag: how much later than the most punctual token of its stream each one came.",
        ),
        faults=shown,
    )
