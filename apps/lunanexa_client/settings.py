"""Settings of one client, and what a single call may say beside its body."""

import os
import ssl
from collections.abc import Mapping
from typing import Final, TypedDict

import attrs

from lunanexa_client.address import Address, parse_address

URL_VARIABLE: Final = "LUNANEXA_URL"
KEY_VARIABLE: Final = "LUNANEXA_TOKEN"
DEFAULT_URL: Final = "http://127.0.0.1:8400/v1"
DEADLINE_MS_MAX: Final = 10**12 - 1


@attrs.frozen(kw_only=True)
class Limits:
    """Bounds on what a server may make this program hold."""

    answer_bytes: int = 64 << 20
    """One whole answer."""
    event_bytes: int = 4 << 20
    """One event of a stream."""
    stream_bytes: int = 1 << 30
    """All events of a stream together."""
    frame_bytes: int = 32 << 20
    """One WebSocket message."""


@attrs.frozen(kw_only=True)
class Retries:
    """Only what the server calls retryable is tried again. The wait is its ``Retry-After`` where it gave one, else
    ``first_ms``, doubled each time up to ``cap_ms``; jitter is added. A wait that would pass the deadline is not
    begun."""

    max_retries: int = 2
    first_ms: int = 250
    cap_ms: int = 8_000


@attrs.frozen(kw_only=True)
class ClientSettings:
    """``api_key`` goes only to ``address``: redirects are not followed."""

    address: Address
    api_key: str | None = attrs.field(default=None, repr=False)
    ca_file: str | None = None
    """Certificates to trust instead of the system's, PEM. TLS is always verified."""
    deadline_ms: int = 600_000
    """Budget of a call that does not name one, retries included."""
    grace_ms: int = 2_000
    """After the deadline, so long for the server's own answer that it has passed."""
    connect_timeout_ms: int = 5_000
    retries: Retries = Retries()
    limits: Limits = Limits()
    ping_interval_ms: int = 20_000
    ping_timeout_ms: int = 10_000

    def __attrs_post_init__(self) -> None:
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable() and self.api_key):
            raise ValueError("api_key: must be printable ASCII, without line breaks")
        if not 1 <= self.deadline_ms <= DEADLINE_MS_MAX:
            raise ValueError(f"deadline_ms: must be from 1 to {DEADLINE_MS_MAX}")
        if self.retries.max_retries < 0:
            raise ValueError("max_retries: must be 0 or more")

    def ssl_context(self) -> ssl.SSLContext | None:
        """Verifies the certificate and the host name; ``None`` for plain HTTP. Raises ``OSError`` when the CA file
        can't be read."""
        return ssl.create_default_context(cafile=self.ca_file) if self.address.tls else None


class CallOptions(TypedDict, total=False):
    """Keyword arguments that every call takes."""

    deadline_ms: int
    """Budget of the whole call, queue, run and retries together; it is also told to the server."""
    idempotency_key: str
    """Lets the server, and with it a retry, recognise the same request."""
    headers: Mapping[str, str]
    """More request headers, such as ``x-lunanexa-priority``."""


def client_settings(
    base_url: str | None,
    api_key: str | None,
    *,
    ca_file: str | None,
    deadline_ms: int | None,
    max_retries: int | None,
    environment: Mapping[str, str] | None = None,
) -> ClientSettings:
    """What is not given is taken from LUNANEXA_URL and LUNANEXA_TOKEN, as the command line does, else from the
    defaults. Raises ``ValueError``."""
    variables = os.environ if environment is None else environment
    settings = ClientSettings(
        address=parse_address(base_url or variables.get(URL_VARIABLE) or DEFAULT_URL),
        api_key=api_key or variables.get(KEY_VARIABLE) or None,
        ca_file=ca_file,
    )
    if deadline_ms is not None:
        settings = attrs.evolve(settings, deadline_ms=deadline_ms)
    if max_retries is not None:
        settings = attrs.evolve(settings, retries=attrs.evolve(settings.retries, max_retries=max_retries))
    return settings
