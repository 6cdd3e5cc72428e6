"""Listening sockets with the options that every server of ours wants.

Options set on a listening socket are inherited by what it accepts (Linux).
"""

import socket

import trio

from lunanexa_adapters.noticing import USER_TIMEOUT_MS, notice_loss

BACKLOG = 1_024
"""hypercorn's default of 100 drops connections under a burst; the kernel caps this one (somaxconn)."""


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
