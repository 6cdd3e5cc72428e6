"""This machine's own addresses and ports."""

import socket


def address_towards(host: str, port: int) -> str | None:
    """The address from which this machine would reach ``host``; ``None`` when there is no way, or no such name. Nothing
    is sent but what a look-up of the name takes."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as way:
                way.connect(address)
                return str(way.getsockname()[0])
    except OSError:
        pass
    return None


def why_not_listen(host: str, port: int) -> str | None:
    """Why a listener can't be opened there now; ``None``: it can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            trial.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return None
