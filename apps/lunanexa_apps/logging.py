"""Where logs go and what a line looks like: one JSON object a line, or a form for people on a terminal.

Every line has ``ts, level, event`` first, then the fields that its writer named. Events are fixed words
(``child_restarted``), never sentences with values in them, and no payload or secret is ever a field.
What libraries write to the standard library's logging comes out in the same form, from WARNING upwards.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

import structlog
from structlog.typing import EventDict, Processor

LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
LEVEL_VARIABLE: Final = "LUNANEXA_LOG_LEVEL"
_FIRST: Final = ("ts", "level", "event")


def configure_logging(*, level: str, stream: TextIO | None = None, human: bool | None = None) -> None:
    """Sets up logging of this process; may be called again, for instance with another level.

    ``level`` is one of :data:`LEVELS`; ``stream`` is standard error unless told; ``human`` ``None`` means
    the form for people when the stream is a terminal. ``NO_COLOR`` (no-color.org) is respected."""
    target = sys.stderr if stream is None else stream
    people = target.isatty() if human is None else human
    structlog.configure(
        processors=_chain(people=people, colors=people and target.isatty() and not os.environ.get("NO_COLOR")),
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *_: _LineLogger(target),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_Forward()]
    root.setLevel(max(LEVELS[level], logging.WARNING))


def level_of(environment: Mapping[str, str], *, verbose: bool) -> str:
    """The level of a process that has only ``-v``: debug with it, else what its supervisor passed on
    (``LUNANEXA_LOG_LEVEL``), else info."""
    inherited = environment.get(LEVEL_VARIABLE, "")
    return "debug" if verbose else inherited if inherited in LEVELS else "info"


def _chain(*, people: bool, colors: bool) -> list[Processor]:
    shared: list[Processor] = [structlog.contextvars.merge_contextvars, structlog.processors.add_log_level]
    if people:
        return [
            *shared,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            _printable,
            structlog.dev.ConsoleRenderer(
                colors=colors, pad_event_to=24, exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    return [
        *shared,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        structlog.processors.format_exc_info,
        _ordered,
        structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
    ]


def _ordered(_: Any, __: str, event: EventDict) -> EventDict:
    return {name: event[name] for name in _FIRST if name in event} | dict(event)


def _printable(_: Any, __: str, event: EventDict) -> EventDict:
    """Callers' words (a model's name) must not steer the terminal."""
    return {
        name: "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in value)
        if isinstance(value, str) and not value.isprintable()
        else value
        for name, value in event.items()
    }


class _LineLogger:
    """Writes a line at once and whole. A terminal that went away, or a full disk, must not end a service
    that has something to say."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = exception = log = msg


class _Forward(logging.Handler):
    """Hands a record of the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        logger = structlog.get_logger()
        logger.log(
            max(record.levelno, logging.WARNING), record.getMessage(), logger=record.name, exc_info=record.exc_info
        )
