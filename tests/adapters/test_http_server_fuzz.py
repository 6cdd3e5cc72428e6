"""Any bytes at all, in any pieces: a connection ends or answers, and nothing of it reaches the server."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.trio.worker_context import WorkerContext
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_adapters.http_server.accept import Drain, ServedConnection, Stream
from lunanexa_adapters.http_server.answers import OnFault
from lunanexa_adapters.http_server.connection import GuardedConnection
from lunanexa_adapters.http_server.guard import guarded
from lunanexa_adapters.http_server.lean_connection import LeanConnection
from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_adapters.http_server.serve import guard_config
from tests.adapters.http_tools import LIMIT_S, echo, read_to_end, render_error
from tests.adapters.test_http_server_malformed import MALFORMED, frame, handshake

pytestmark = pytest.mark.thorough

LIMITS = ServerLimits(head_max_bytes=2_048, linger_ms=20, websocket_message_max_bytes=4_096)

TOKENS = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"5\r\nhello\r\n",
    b"0\r\n\r\n",
    b"hello",
    b"Expect: 100-continue\r\n",
    b"\r\n",
    b"HEAD / HTTP/1.0\r\n",
    handshake(),
    frame(1, b"text"),
    frame(2, b"x" * 5_000),
    frame(9, b"ping"),
    frame(8, b"\x03\xe8"),
    *(b"".join(pieces) for pieces in MALFORMED.values()),
]

pieces = st.lists(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=40)), max_size=8)


def lean(stream: Stream, on_fault: OnFault) -> ServedConnection:
    return LeanConnection(
        echo, stream, Drain(), {}, state={}, limits=LIMITS, render_error=render_error, on_fault=on_fault
    )


def guarded_hypercorn(stream: Stream, on_fault: OnFault) -> ServedConnection:
    config = guard_config(LIMITS, render_error, on_fault)
    wrapped: Any = ASGIWrapper(echo)  # type: ignore[arg-type]  # plain mappings here, typed dicts there
    return GuardedConnection(wrapped, config, WorkerContext(None), {}, stream, Drain(), {})


@pytest.mark.parametrize("make", [lean, guarded_hypercorn])
@given(sent=pieces, joined=st.booleans())
async def test_any_bytes(make: Callable[[Stream, OnFault], ServedConnection], sent: list[bytes], joined: bool) -> None:
    faults: list[BaseException] = []
    ours, theirs = (trio.SocketStream(sock) for sock in trio.socket.socketpair())
    received = b""
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:

            async def serve() -> None:
                await guarded(make(theirs, faults.append).run, on_fault=faults.append)
                theirs.socket.close()

            async def send() -> None:
                try:
                    for piece in [b"".join(sent)] if joined else sent:
                        await ours.send_all(piece)
                        await trio.lowlevel.checkpoint()
                    await ours.send_eof()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return

            nursery.start_soon(serve)
            nursery.start_soon(send)
            received = await read_to_end(ours)
    ours.socket.close()
    assert faults == []
    assert not received or received.startswith(b"HTTP/1.1 ")
    assert b"HTTP/1.1 500" not in received
