"""Composition root of ``lunanexa-sim``."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    import trio

    from lunanexa_ports.asgi import AsgiApplication
    from lunanexa_simulation.real.tools import RealTools
    from lunanexa_simulation.serving.tools import ServeTools

T = TypeVar("T")

_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    try:
        # The whole service: it takes a second, in which Ctrl-C is no fault.
        from lunanexa_simulation.cli.program import start
        from lunanexa_simulation.cli.tools import Tools
    except KeyboardInterrupt:
        return _INTERRUPTED
    return start(arguments, Tools(loop=_loop, real=_real_tools, serve=_serve_tools))


def _loop(function: Callable[[], Awaitable[T]], /, *, clock: "trio.abc.Clock | None" = None) -> T:
    import trio

    return trio.run(function, clock=clock)


def _real_tools() -> "RealTools":
    # Imported when they are needed: a swarm's workers have no socket.
    from lunanexa_adapters.children.children import LinuxChildren
    from lunanexa_adapters.http_client.http_client import H11HttpClient
    from lunanexa_adapters.sqlite.journal_reader import open_sqlite_journal_reader
    from lunanexa_simulation.real.tools import RealTools

    return RealTools(children=LinuxChildren, http=H11HttpClient, open_journal=open_sqlite_journal_reader)


def _serve_tools() -> "ServeTools":
    from lunanexa_adapters.asgi.errors import render_error
    from lunanexa_adapters.http_server.limits import ServerLimits
    from lunanexa_adapters.http_server.listeners import addresses, open_listeners
    from lunanexa_adapters.http_server.serve import serve_http
    from lunanexa_adapters.system.clock import SystemClock
    from lunanexa_apps.setting_kinds import HostPort
    from lunanexa_simulation.serving.tools import Listening, ServeTools

    async def listen(place: HostPort) -> Listening:
        listeners = await open_listeners(place.host, place.port)

        async def serve(
            app: "AsgiApplication",
            *,
            shutdown: "trio.Event",
            fault: Callable[[str], None],
            task_status: "trio.TaskStatus[None]",
        ) -> None:
            await serve_http(
                app,
                listeners,
                render_error=render_error,
                on_fault=lambda error: fault(type(error).__name__),
                limits=ServerLimits(grace_ms=1_000),
                shutdown=shutdown,
                task_status=task_status,
            )

        return Listening(address=HostPort(*addresses(listeners)[0]), serve=serve)

    return ServeTools(clock=SystemClock(), listen=listen)


if __name__ == "__main__":
    sys.exit(main())
