"""Request headers as far as they mean something to us. Only ASCII does: other bytes are refused, not guessed."""

import re
from collections.abc import Iterable
from typing import Any, Final

from lunanexa_adapters.asgi.errors import invalid
from lunanexa_core.ids import RequestId, is_identifier
from lunanexa_core.outcomes import Refusal
from lunanexa_core.terms import TERM_HEADERS, Terms, terms_of_headers
from lunanexa_ports.asgi import Scope
from lunanexa_ports.ids import IdSource

_TERMS: Final = frozenset(name.encode() for name in TERM_HEADERS)
_CONTROL: Final = re.compile(rb"[\x00\r\n]")
_DIGITS_MAX: Final = 15
_REQUEST_ID_KEY: Final = "lunanexa.request_id"


def raw_header(scope: Scope, name: bytes) -> bytes | None:
    """The first value of a header."""
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    return next((value for key, value in headers if key.lower() == name), None)


def text_header(scope: Scope, name: bytes) -> str | Refusal | None:
    """The first value of a header, as text."""
    value = raw_header(scope, name)
    if value is None:
        return None
    try:
        return value.decode("ascii").strip()
    except UnicodeDecodeError:
        return invalid(f"The header {name.decode()} is not ASCII.", name.decode())


def unreadable(scope: Scope) -> Refusal | None:
    """Why an address or a header is not one that whoever writes them by their rules would send."""
    for part in ("query_string", "raw_path"):
        # Whoever writes an address by its rules (RFC 3986) writes ASCII.
        if not scope.get(part, b"").isascii():
            return invalid("The address is not ASCII.", "path")
    for name, value in scope["headers"]:
        if _CONTROL.search(name + value):
            return invalid("A header holds control characters.")
    return None


def is_number(text: str) -> bool:
    """Plain digits, few enough for any integer of ours."""
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def request_id(scope: Scope, ids: IdSource) -> RequestId:
    """The caller's own ``x-request-id`` where it is an identifier, else a fresh one. Kept in the scope, so that
    every part of the edge names the request alike."""
    known: Any = scope.get(_REQUEST_ID_KEY)
    if known is None:
        given = (raw_header(scope, b"x-request-id") or b"").decode("latin-1").strip()
        known = scope[_REQUEST_ID_KEY] = given if is_identifier(given) else ids.new("req")
    return RequestId(known)


def bearer(scope: Scope) -> str | Refusal | None:
    """The presented secret: ``Authorization: Bearer``, else ``x-api-key``; ``None`` when there is none."""
    authorization = text_header(scope, b"authorization")
    if isinstance(authorization, Refusal):
        return authorization
    if authorization is not None:
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() == "bearer" and secret.strip():
            return secret.strip()
    key = text_header(scope, b"x-api-key")
    return key if isinstance(key, Refusal) else key or None


def terms(scope: Scope) -> Terms | Refusal:
    """What the caller asks beside the body; of a header that is given twice the first counts."""
    found: dict[str, str] = {}
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    for name, value in headers:
        lowered = name.lower()
        if lowered in _TERMS and lowered.decode() not in found:
            try:
                found[lowered.decode()] = value.decode("ascii").strip()
            except UnicodeDecodeError:
                return invalid(f"The header {lowered.decode()} is not ASCII.", lowered.decode())
    return terms_of_headers(found)
