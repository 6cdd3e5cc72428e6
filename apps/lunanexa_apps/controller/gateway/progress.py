"""What is known of one request at any moment, so that whatever ends it can say how it ended.

Times are seconds of the loop's own clock; the settlement counts milliseconds since admission.
"""

from collections.abc import Callable

import attrs
import trio

from lunanexa_core.allowance import UNLIMITED, Allowances
from lunanexa_core.ids import StartId, WorkloadId
from lunanexa_core.openai.answer_rules import answer_rules
from lunanexa_core.openai.head import RequestHead, input_estimate
from lunanexa_core.openai.stream import AnswerReader
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.workload import Attempt, LedgerReceipt, Settlement, Usage
from lunanexa_ports.dispatch import Grant


@attrs.define(kw_only=True)
class Progress:
    """One request under way. ``owed``: it may be admitted and has no receipt yet."""

    workload: WorkloadId
    began_s: float
    head: RequestHead | None = None
    owed: bool = False
    admitted_s: float | None = None
    dispatched_s: float | None = None
    """When the first engine was asked."""
    first_output_s: float | None = None
    waited_s: float = 0.0
    """Spent in the queue, by our own clock."""
    queue_ms: int = 0
    attempts: list[Attempt] = attrs.Factory(list)
    reader: AnswerReader | None = None
    """The current attempt's; ``None`` while no engine works for this request."""
    on_stream: Callable[[], None] = lambda: None
    """Told of a stream's first output."""
    passed_on: bool = False
    """Whether output of an engine has gone out to the client: no other replica is asked after that."""
    usage: Usage | None = None
    """Of a whole answer; that of a stream is its reader's."""
    settlement: Settlement | None = None
    receipt: LedgerReceipt | None = None
    """Once it is durable."""
    asking: StartId | None = None
    """The replica that works on it now."""
    outcome: Outcome | None = None
    engine_refused: bool = False
    voided: Refusal | None = None
    """Why it must end: its key is in force no more, or its caller cancelled it."""
    kept: bool = False
    """Whether the answer was put aside for its idempotency key."""
    replayed: bool = False
    """Whether an answer that was put aside is given again."""
    outlived: Refusal | None = None
    """Its own ceiling on the time that it runs ends it before its deadline would."""
    trace: str | None = None
    """The caller's, for the log."""
    allowances: Allowances = UNLIMITED
    status: int = 0

    def granted(self, grant: Grant, waited_s: float) -> None:
        """A replica was given."""
        self.waited_s += waited_s
        # Since its arrival, which for a second replica has in it what the first one took.
        self.queue_ms = self.queue_ms + _ms(waited_s) if self.attempts else grant.queued_ms

    def asked(self, start: StartId) -> AnswerReader:
        """An engine is asked now."""
        assert self.head is not None
        self.asking = start
        if self.dispatched_s is None:
            self.dispatched_s = trio.current_time()
        self.reader = answer_rules(self.head.dialect).reader(self.head.choices)
        return self.reader

    def put_out(self) -> None:
        """Output is there."""
        if self.first_output_s is None:
            self.first_output_s = trio.current_time()
            if self.head is not None and self.head.stream:
                self.on_stream()

    def gave_up(self, attempt: Attempt) -> None:
        """An attempt failed without output; nothing is booked for it."""
        self.concluded(attempt)
        self.reader = None

    def concluded(self, attempt: Attempt) -> None:
        """An attempt is over, with an answer or without."""
        self.attempts.append(attempt)
        self.asking = None

    @property
    def overhead_s(self) -> float | None:
        """Our own added time until an engine was asked."""
        if self.dispatched_s is None:
            return None
        return max(0.0, self.dispatched_s - self.began_s - self.waited_s)

    @property
    def booked(self) -> Usage:
        """The engine's count, else ours, of what an engine did for this request."""
        if self.usage is not None:
            return self.usage
        if self.reader is None or self.head is None:
            return Usage()
        return self.reader.used(input_estimate(self.head))

    def settle_as(self, outcome: Outcome | None, detail: str | None) -> Settlement:
        """Fixes how the request ended. The first word counts."""
        if self.settlement is None:
            now_s = trio.current_time()
            admitted_s = now_s if self.admitted_s is None else self.admitted_s
            first_s = self.first_output_s
            if self.asking is not None:
                self.concluded(Attempt(start=self.asking, failure="cut_off"))
            self.outcome = outcome
            self.settlement = Settlement(
                workload=self.workload,
                outcome=outcome,
                detail=detail,
                usage=self.booked,
                queue_ms=self.queue_ms,
                first_output_ms=None if first_s is None else _ms(first_s - admitted_s),
                total_ms=_ms(now_s - admitted_s),
                attempts=tuple(self.attempts),
                kept=self.kept and outcome is None,
            )
        return self.settlement


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
