"""TCP sockets that notice it when the other side's machine is gone without a word, on both sides of every connection
of ours.

``TCP_USER_TIMEOUT`` makes the kernel give up on a peer that acknowledges nothing, also when the process waits for
something else; keepalive probes find a peer that vanished while nobody was sending. Without them a kernel asks after
two hours, and a call to a machine that lost its power waits for as long as its caller does.
"""

import socket
from typing import Final

import trio

USER_TIMEOUT_MS: Final = 30_000
KEEPALIVE_IDLE_S: Final = 30
KEEPALIVE_INTERVAL_S: Final = 10
KEEPALIVE_PROBES: Final = 3


def notice_loss(sock: trio.socket.SocketType, *, user_timeout_ms: int = USER_TIMEOUT_MS) -> None:
    """Has the kernel give up on a peer that is silent where it must not be. Raises ``OSError``. A system that lacks one
    of these options, as that of a client of ours may, goes without it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_USER_TIMEOUT", user_timeout_ms),
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        option: int | None = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
