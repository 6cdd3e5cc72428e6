"""What the engine counts of itself, under vLLM's metric names, in Prometheus' text format.

Source of names, labels and buckets: ``/metrics`` of vLLM 0.32 as recorded. A driver that reads vLLM reads
this engine too. Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs
import trio

from lunanexa_apps.engine.generation import FinishReason
from lunanexa_apps.engine.slots import Slots

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
           80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_LATENCY_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
              960.0, 1920.0, 7680.0)  # fmt: skip
_OUTCOMES = ("stop", "length", "abort", "error")


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@attrs.define
class Progress:
    """One request's times, in seconds of trio's clock. ``outcome`` stays ``abort`` until all is generated;
    whether the client took the end of it is not the engine's to count."""

    arrived_s: float
    last_token_s: float | None = None
    outcome: str = "abort"

    def finished(self, reason: FinishReason) -> None:
        self.outcome = "length" if reason == "length" else "stop"


class Metrics:
    def __init__(self, model_name: str) -> None:
        self._labels = {"engine": "0", "model_name": model_name}
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.rejections = 0
        self.finished = dict.fromkeys(_OUTCOMES, 0)
        self.ttft_s = Histogram(_TTFT_S)
        self.itl_s = Histogram(_ITL_S)
        self.e2e_s = Histogram(_LATENCY_S)
        self.queue_s = Histogram(_LATENCY_S)

    @contextmanager
    def request(self) -> Iterator[Progress]:
        """Book one request's end, whichever way it ends."""
        progress = Progress(trio.current_time())
        try:
            yield progress
        finally:
            self.finished[progress.outcome] += 1
            self.e2e_s.observe(trio.current_time() - progress.arrived_s)

    def started(self, progress: Progress, prompt_tokens: int) -> None:
        self.queue_s.observe(trio.current_time() - progress.arrived_s)
        self.prompt_tokens += prompt_tokens

    def token(self, progress: Progress) -> None:
        now_s = trio.current_time()
        self.generation_tokens += 1
        if progress.last_token_s is None:
            self.ttft_s.observe(now_s - progress.arrived_s)
        else:
            self.itl_s.observe(now_s - progress.last_token_s)
        progress.last_token_s = now_s

    def render(self, slots: Slots, cache_use: float) -> str:
        page = _Page(self._labels)
        page.one("vllm:num_requests_running", "gauge", "Requests that hold a slot.", slots.running)
        page.one("vllm:num_requests_waiting", "gauge", "Requests that wait for a slot.", slots.waiting)
        page.one("vllm:kv_cache_usage_perc", "gauge", "Tokens in slots, of all that fit; 1 is full.", cache_use)
        page.one("vllm:prompt_tokens_total", "counter", "Prompt tokens processed.", self.prompt_tokens)
        page.one("vllm:generation_tokens_total", "counter", "Tokens generated.", self.generation_tokens)
        page.head("vllm:request_success_total", "counter", "Requests ended, by reason.")
        for reason, count in self.finished.items():
            page.sample("vllm:request_success_total", count, finished_reason=reason)
        page.head("vllm:admission_rejections_total", "counter", "Requests refused by the queue limit.")
        page.sample("vllm:admission_rejections_total", self.rejections, reason="max_num_queued_reqs")
        page.histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", self.ttft_s)
        page.histogram("vllm:inter_token_latency_seconds", "One token to the next.", self.itl_s)
        page.histogram("vllm:e2e_request_latency_seconds", "Arrival to end.", self.e2e_s)
        page.histogram("vllm:request_queue_time_seconds", "Arrival to slot.", self.queue_s)
        return page.text()


class _Page:
    def __init__(self, labels: Mapping[str, str]) -> None:
        self._pairs = [_pair(key, text) for key, text in labels.items()]
        self._lines: list[str] = []

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def head(self, name: str, kind: str, help_text: str) -> None:
        self._lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]

    def sample(self, name: str, value: float, **labels: str) -> None:
        listed = ",".join(sorted((*self._pairs, *(_pair(key, text) for key, text in labels.items()))))
        self._lines.append(f"{name}{{{listed}}} {float(value)!r}")

    def one(self, name: str, kind: str, help_text: str, value: float) -> None:
        self.head(name, kind, help_text)
        self.sample(name, value)

    def histogram(self, name: str, help_text: str, histogram: Histogram) -> None:
        self.head(name, "histogram", help_text)
        total = 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            total += count
            self.sample(f"{name}_bucket", total, le="+Inf" if bound == float("inf") else repr(bound))
        self.sample(f"{name}_count", total)
        self.sample(f"{name}_sum", histogram.sum)


def _pair(key: str, text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{key}="{escaped}"'
