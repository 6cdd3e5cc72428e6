"""Composition root of ``lunanexa-engine``: settings, clock, identifiers, listeners, signals.

The first SIGTERM or SIGINT stops accepting and gives running generations ``--drain-ms``, then exit 0; a
second one ends the process at once. Start-up is part of the product: nothing heavy is imported here.
The faults of the process itself (exit, exit at start, slow stop) are committed here.
"""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import trio

from lunanexa_adapters.http_server.lean import serve_lean
from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_adapters.http_server.listeners import addresses, open_listeners
from lunanexa_adapters.system.clock import SystemClock
from lunanexa_adapters.system.ids import SystemIds
from lunanexa_apps.engine.app import ReferenceEngine
from lunanexa_apps.engine.command_line import Options, read_options
from lunanexa_apps.engine.errors import server_refusal
from lunanexa_apps.engine.faults import FaultKind
from lunanexa_apps.engine.frames import encode
from lunanexa_apps.engine.language_model import LanguageModel, read_corpus

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CANNOT_LISTEN = 1


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_options(sys.argv[1:] if arguments is None else arguments, os.environ, version("lunanexa"))
    return trio.run(_run, options)


async def _run(options: Options) -> int:
    clock = SystemClock()
    log = _Log(clock)
    ids = SystemIds(clock)
    end = _End(log)
    app = ReferenceEngine(
        options.engine,
        LanguageModel(read_corpus()),
        now_s=lambda: clock.now().wall_ms // 1000,
        new_id=lambda: ids.new("answer").partition("_")[2],
        end_process=end.by_fault,
    )
    if options.engine.faults:
        log.write("warning", "faults_armed", faults=[str(fault) for fault in options.engine.faults])
    at_start = app.faults.of_process(FaultKind.EXIT_AT_START)
    if at_start is not None:
        log.write("error", "told_to_exit_at_start", status=at_start)
        return at_start
    try:
        listeners = await open_listeners(options.host, options.port)
    except OSError as error:
        log.write("error", "cannot_listen", host=options.host, port=options.port, reason=error.strerror or str(error))
        return _CANNOT_LISTEN
    host, port = addresses(listeners)[0]
    with trio.open_signal_receiver(*_SIGNALS) as signals, end.serving:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_obey, signals, end, app, log)
            server = partial(
                serve_lean,
                app,
                listeners,
                limits=ServerLimits(grace_ms=options.drain_ms),
                render_error=_render_error,
                on_fault=partial(_tell_fault, log),
                shutdown=end.draining,
            )
            async with trio.open_nursery() as serving:
                await serving.start(server)
                _write_ready_file(options.ready_file, host, port)
                log.write("info", "serving", host=host, port=port, pid=os.getpid(), model=options.engine.names[0])
            nursery.cancel_scope.cancel()
    if options.ready_file is not None:
        options.ready_file.unlink(missing_ok=True)
    log.write("info", "stopped", status=end.status)
    return end.status


class _End:
    """How the process ends: first ``draining``, or at once with what ``serving`` encloses."""

    def __init__(self, log: "_Log") -> None:
        self._log = log
        self.draining = trio.Event()
        self.serving = trio.CancelScope()
        self.status = 0

    def at_once(self, status: int) -> None:
        self.status = status
        self.serving.cancel()

    def by_fault(self, status: int) -> None:
        self._log.write("error", "told_to_exit", status=status)
        self.at_once(status)


async def _obey(signals: AsyncIterator[int], end: _End, app: ReferenceEngine, log: "_Log") -> None:
    async for number in signals:
        if end.draining.is_set():
            end.at_once(128 + number)
            return
        deaf_ms = app.faults.of_process(FaultKind.SLOW_STOP)
        if deaf_ms is not None:
            log.write("warning", "told_to_stop_slowly", deaf_ms=deaf_ms)
            with trio.move_on_after(deaf_ms / 1000):
                async for _ in signals:
                    pass
        log.write("info", "draining", signal=signal.Signals(number).name, requests=app.busy)
        end.draining.set()
    raise AssertionError("signals do not end")


def _write_ready_file(path: Path | None, host: str, port: int) -> None:
    if path is None:
        return
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_bytes(encode({"host": host, "port": port, "pid": os.getpid()}) + b"\n")
    os.replace(unfinished, path)


def _render_error(status: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
    return [(b"content-type", b"application/json")], encode(server_refusal(status).document())


def _tell_fault(log: "_Log", error: BaseException) -> None:
    # The kind only: an error's text can hold what a client sent.
    log.write("error", "connection_fault", kind=type(error).__name__)


class _Log:
    """One JSON object a line on standard error; there is too little to say for a library."""

    def __init__(self, clock: SystemClock) -> None:
        self._clock = clock

    def write(self, level: str, event: str, **fields: object) -> None:
        line = {"ts_ms": self._clock.now().wall_ms, "level": level, "event": event, **fields}
        print(json.dumps(line), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
