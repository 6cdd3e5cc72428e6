"""The one place of the servers where any error is caught: what one client, or one handler, breaks must not
end the process and with it everybody else's connection.

In stock hypercorn on Trio an error that a peer provokes (bytes before a WebSocket is accepted, a
non-ASCII ``Sec-WebSocket-Extensions`` and others) passes through the server's nursery and stops the server.
"""

from collections.abc import Awaitable, Callable

from lunanexa_adapters.http_server.answers import ClientGone, OnFault


async def guarded(work: Callable[[], Awaitable[None]], *, on_fault: OnFault) -> None:
    """Runs ``work``; hands any ``Exception`` to ``on_fault``. Cancellation, also one mixed with errors in a
    group, goes on its way. A send after the client's departure is no fault, from whichever nursery it comes."""
    try:
        try:
            await work()
        except* ClientGone:
            pass
    except* Exception as group:  # noqa: BLE001 - the guard itself, see above
        on_fault(group.exceptions[0] if len(group.exceptions) == 1 else group)
