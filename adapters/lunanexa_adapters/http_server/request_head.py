"""What a request head must be before an application sees it; pure functions over h11's request."""

import h11

from lunanexa_adapters.http_server.limits import ServerLimits

WEBSOCKET_HEADERS = (b"connection", b"sec-websocket-key", b"sec-websocket-protocol", b"sec-websocket-version")


def refusal_of(request: h11.Request, limits: ServerLimits) -> int | None:
    """The status with which the server itself refuses, or ``None``.

    h11 has checked the grammar. What it lets through: a complete head longer than its limit (it only
    measures incomplete ones), any version number, any form of target, and both framing headers at once
    (RFC 9112, 6.3: a sign of request smuggling)."""
    if _size(request) > limits.head_max_bytes:
        return 431
    if request.http_version not in (b"1.0", b"1.1"):
        return 505
    names = [name for name, _ in request.headers]
    if target_path(request) is None or (b"content-length" in names and b"transfer-encoding" in names):
        return 400
    if limits.body_max_bytes is not None and _content_length(request) > limits.body_max_bytes:
        return 413
    if wants_websocket(request) and not _is_sound_handshake(request):
        return 400
    return None


def target_path(request: h11.Request) -> bytes | None:
    """The target in origin form (path and query); ``None`` when there is none. A server must take the absolute
    form too (RFC 9112, 3.2.2); ``*`` belongs to OPTIONS."""
    target = bytes(request.target)
    if target.startswith(b"/"):
        return target
    if target == b"*" and request.method == b"OPTIONS":
        return target
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return None
    for index, byte in enumerate(rest):
        if byte == ord("/"):
            return rest[index:]
        if byte == ord("?"):
            return b"/" + rest[index:]
    return b"/"


def wants_websocket(request: h11.Request) -> bool:
    tokens: list[bytes] = []
    upgrade = b""
    for name, value in request.headers:
        if name == b"connection":
            tokens += [token.strip() for token in value.lower().split(b",")]
        elif name == b"upgrade":
            upgrade = value.strip().lower()
    return request.method == b"GET" and upgrade == b"websocket" and b"upgrade" in tokens


def _is_sound_handshake(request: h11.Request) -> bool:
    """hypercorn decodes these headers as ASCII and takes a body for WebSocket frames."""
    for name, value in request.headers:
        if name in (b"content-length", b"transfer-encoding"):
            return False
        if name in WEBSOCKET_HEADERS and not value.isascii():
            return False
    return True


def _size(request: h11.Request) -> int:
    return (
        len(request.method) + len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers)
    )


def _content_length(request: h11.Request) -> int:
    return next((int(value) for name, value in request.headers if name == b"content-length"), 0)
