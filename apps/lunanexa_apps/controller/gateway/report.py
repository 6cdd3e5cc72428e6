"""What the gateway tells people of each request: metrics and one access line. Never a payload."""

from typing import Final

import structlog
import trio

from lunanexa_apps.controller.gateway.progress import Progress
from lunanexa_core.ids import RequestId
from lunanexa_core.outcomes import Outcome
from lunanexa_ports.metrics import Metrics

_LATENCY_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_OVERHEAD_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
HELP: Final = {
    "lunanexa_requests_total": "Inference requests by route and outcome.",
    "lunanexa_requests_in_flight": "Inference requests in progress.",
    "lunanexa_time_to_first_token_seconds": "From arrival to the first output of an engine.",
    "lunanexa_queue_seconds": "Time spent waiting for a replica.",
    "lunanexa_request_seconds": "From arrival to the end.",
    "lunanexa_tokens_total": "Tokens booked, by direction.",
    "lunanexa_overhead_seconds": "Time added before an engine was asked, without the queue.",
}


class Reporter:
    """Reports each request once, when it is over."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._log = structlog.get_logger("lunanexa.gateway")
        self._in_flight = 0

    def began(self) -> None:
        """A request came in."""
        self._in_flight += 1
        self._metrics.set("lunanexa_requests_in_flight", self._in_flight)

    def ended(self, request: RequestId, route: str, progress: Progress) -> None:
        """It is over."""
        self._in_flight -= 1
        total_s = trio.current_time() - progress.began_s
        outcome = _label(progress)
        self._measure(route, progress, outcome, total_s)
        self._log.info(
            "request",
            request_id=request,
            workload_id=progress.workload if progress.admitted_s is not None else None,
            alias=None if progress.head is None else progress.head.model,
            route=route,
            outcome=outcome,
            detail=None if progress.settlement is None else progress.settlement.detail,
            status=progress.status,
            ms=round(total_s * 1000),
            queue_ms=progress.queue_ms,
            attempts=len(progress.attempts),
            **({} if progress.trace is None else {"trace": progress.trace}),
        )

    def _measure(self, route: str, progress: Progress, outcome: str, total_s: float) -> None:
        metrics, labels = self._metrics, {"route": route}
        metrics.set("lunanexa_requests_in_flight", self._in_flight)
        metrics.count("lunanexa_requests_total", {**labels, "outcome": outcome})
        metrics.observe("lunanexa_request_seconds", total_s, labels, _LATENCY_BUCKETS_S)
        if progress.overhead_s is None:
            return
        metrics.observe("lunanexa_queue_seconds", progress.waited_s, labels, _LATENCY_BUCKETS_S)
        metrics.observe("lunanexa_overhead_seconds", progress.overhead_s, labels, _OVERHEAD_BUCKETS_S)
        if progress.first_output_s is not None:
            first_s = progress.first_output_s - progress.began_s
            metrics.observe("lunanexa_time_to_first_token_seconds", first_s, labels, _LATENCY_BUCKETS_S)
        usage = progress.booked if progress.settlement is None else progress.settlement.usage
        metrics.count("lunanexa_tokens_total", {"direction": "input"}, usage.input_tokens)
        metrics.count("lunanexa_tokens_total", {"direction": "output"}, usage.output_tokens)


def _label(progress: Progress) -> str:
    match progress.outcome:
        case None if progress.replayed:
            return "replayed"
        case None:
            return "engine_refused" if progress.engine_refused else "succeeded"
        case Outcome() as outcome:
            return outcome.value
