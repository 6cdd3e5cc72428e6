"""Listening sockets with the options that every server of ours wants.

Options set on a listening socket are inherited by what it accepts (Linux). ``TCP_USER_TIMEOUT`` makes the
kernel give up on a peer that acknowledges nothing, also when the process waits for something else;
keepalive probes find a peer that vanished while nobody was sending.
"""

import socket

import trio

BACKLOG = 1_024
"""hypercorn's default of 100 drops connections under a burst; the kernel caps this one (somaxconn)."""
USER_TIMEOUT_MS = 30_000
KEEPALIVE_IDLE_S = 30
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 3


async def open_listeners(
    host: str, port: int, *, backlog: int = BACKLOG, user_timeout_ms: int = USER_TIMEOUT_MS
) -> list[trio.SocketListener]:
    """Listens on every address of ``host``; with port 0 on one free port for all of them. Raises ``OSError``.
    Whoever serves the listeners closes them."""
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[trio.SocketListener] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            chosen = port or (listeners[0].socket.getsockname()[1] if listeners else 0)
            listeners.append(await _listen(family, (address[0], chosen, *address[2:]), backlog, user_timeout_ms))
    except BaseException:
        for listener in listeners:
            listener.socket.close()
        raise
    return listeners


def addresses(listeners: list[trio.SocketListener]) -> list[tuple[str, int]]:
    """Host and port of each, as bound."""
    return [listener.socket.getsockname()[:2] for listener in listeners]


def notice_loss(sock: trio.socket.SocketType, *, user_timeout_ms: int = USER_TIMEOUT_MS) -> None:
    """Has the kernel give up on a peer that is silent where it must not be. Raises ``OSError``."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_timeout_ms)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


async def _listen(family: int, address: tuple[object, ...], backlog: int, user_timeout_ms: int) -> trio.SocketListener:
    sock = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        notice_loss(sock, user_timeout_ms=user_timeout_ms)
        await sock.bind(address)
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return trio.SocketListener(sock)
