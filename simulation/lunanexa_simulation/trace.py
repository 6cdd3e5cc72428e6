"""What happened in a run, and its hash: the identity of the run.

A run's trace is the sequence of (virtual milliseconds, actor, event). Beside it stands the schedule: which
task ran when, step by step. Two runs of one seed must agree in both, and the schedule shows a difference
long before anybody can see it.
"""

import hashlib
import sys
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any, Final

import structlog
import trio

from lunanexa_core.canonical import NotCanonical, canonical_json

TAIL_LINES: Final = 50
"""What a failure shows."""

LOG_LINES: Final = 10_000
"""Lines of the services' logs that are kept; older ones are dropped and counted."""


def virtual_ms() -> int:
    """Milliseconds since the run began; the clock of a run starts at 0."""
    # Rounded: sums of float seconds fall a hair below the millisecond that they mean.
    return round(trio.current_time() * 1_000)


class Trace:
    """Every line goes into the digest; the newest are kept."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.lines = 0
        self.heard: Callable[[str, str], None] = lambda _actor, _event: None
        """Told of each line; it changes nothing in the run."""

    def record(self, actor: str, event: str) -> None:
        """Adds what ``actor`` did, now."""
        self.heard(actor, event)
        line = f"{virtual_ms():>8} ms  {actor:<14} {event}"
        self._hash.update(line.encode("utf-8", "backslashreplace") + b"\n")
        self._tail.append(line)
        self.lines += 1

    @property
    def tail(self) -> tuple[str, ...]:
        """The newest lines, oldest first."""
        return tuple(self._tail)

    def digest(self) -> str:
        """SHA-256 of all lines so far, hex."""
        return self._hash.hexdigest()


class Schedule(trio.abc.Instrument):
    """Hashes which task takes a step at which virtual time. It never raises: Trio would drop it, and say so
    in a log only."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._at_s = -1.0
        self._unhashed: list[str] = []
        self.steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        now_s = trio.current_time()
        if now_s != self._at_s:
            self._at_s = now_s
            self._hash_steps()
            self._unhashed.append(repr(now_s))
        self._unhashed.append(task.name)

    def digest(self) -> str:
        """SHA-256 of all steps so far, hex."""
        self._hash_steps()
        return self._hash.hexdigest()

    def _hash_steps(self) -> None:
        self._hash.update("\n".join((*self._unhashed, "")).encode())
        self._unhashed.clear()


class LogBuffer:
    """Where the services' log lines go in a run: nothing reaches standard error."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self.written = 0

    def since(self, written: int) -> list[str]:
        """The lines that came after the first ``written``, as far as they are kept."""
        new = min(self.written - written, len(self._lines))
        return [self._lines[-back] for back in range(new, 0, -1)]

    def processor(self, _: Any, level: str, event: MutableMapping[str, Any]) -> structlog.typing.ProcessorReturnValue:
        """The last processor of structlog's chain. The digest sees what was said, not where in the source an
        error arose."""
        error = event.pop("exc_info", None)
        fields = {"level": level, **{str(name): _plain(value) for name, value in event.items()}}
        if error:
            fields["error"] = _name_of(error)
        try:
            line = canonical_json(fields).decode()
        except NotCanonical:
            line = repr(sorted(fields.items()))
        self._lines.append(line)
        self.written += 1
        self._trace.record("log", line)
        raise structlog.DropEvent


def _plain(value: object) -> str | int | None:
    if value is None or isinstance(value, int):
        return value
    # repr of an object of ours would show its address.
    return value if isinstance(value, str) else type(value).__name__ if "0x" in repr(value) else repr(value)


def _name_of(error: object) -> str:
    if error is True:
        error = sys.exc_info()[1]
    return f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else repr(error)
