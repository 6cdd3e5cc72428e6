"""Where the service is: a base URL, taken apart."""

from typing import Final
from urllib.parse import urlsplit

import attrs

_PORTS: Final = {"http": 80, "https": 443}


@attrs.frozen(kw_only=True)
class Address:
    """``prefix`` stands before each path: empty, or the path of a gateway in between (``/models/luna``)."""

    host: str
    port: int
    tls: bool
    prefix: str = ""

    @property
    def authority(self) -> str:
        """``host:port``, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"


def parse_address(url: str) -> Address:
    """The address of a base URL, with or without its closing ``/v1``. Raises ``ValueError``, which names the fault
    but not the URL, in which a person may have left a secret."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"base_url: {error}; write it as http://127.0.0.1:8400/v1") from None
    host = parts.hostname
    if parts.scheme not in _PORTS or not host:
        raise ValueError("base_url: must be http://host:port/v1 or https://host:port/v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError("base_url: must not hold a name or a password; give the key as api_key")
    if parts.query or parts.fragment:
        raise ValueError("base_url: must end in /v1, without a query")
    if not (parts.path.isascii() and parts.path.isprintable() and " " not in parts.path and host.isprintable()):
        raise ValueError("base_url: holds a character that no URL may hold; write it as %XX")
    return Address(
        host=host,
        port=_PORTS[parts.scheme] if port is None else port,
        tls=parts.scheme == "https",
        prefix=parts.path.rstrip("/").removesuffix("/v1"),
    )
