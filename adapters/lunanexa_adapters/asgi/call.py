"""What every call with a body has in common: head before key, key before body, and the body within its limit."""

import attrs

from lunanexa_adapters.asgi.errors import invalid
from lunanexa_adapters.asgi.exchange import Exchange
from lunanexa_adapters.asgi.headers import bearer, raw_header, terms
from lunanexa_core.outcomes import Refusal
from lunanexa_core.terms import Terms
from lunanexa_ports.asgi import Scope
from lunanexa_ports.gateway import InferenceGateway

JSON_TYPE = "application/json"
FORM_TYPE = "multipart/form-data"


@attrs.frozen(kw_only=True)
class ReadCall:
    """A call whose caller may ask, with its body."""

    api_key: str | None = attrs.field(repr=False)
    terms: Terms
    content_type: str
    body: bytes = attrs.field(repr=False)


async def read_call(
    exchange: Exchange, gateway: InferenceGateway, limit_bytes: int, media_type: str = JSON_TYPE
) -> ReadCall | None:
    """Reads a call; ``None`` when it was refused. Nobody without a key has a body read, let alone parsed, for him.
    Raises :class:`~lunanexa_adapters.asgi.exchange.Departed`."""
    scope = exchange.scope
    key, asked = bearer(scope), terms(scope)
    for found in (_unreadable(scope, media_type), key, asked):
        if isinstance(found, Refusal):
            await exchange.refuse_unread(found)
            return None
    assert not isinstance(key, Refusal)
    assert not isinstance(asked, Refusal)
    stranger = await gateway.authenticate(key)
    if stranger is not None:
        await exchange.refuse_unread(stranger)
        return None
    body = await exchange.body(limit_bytes)
    if isinstance(body, Refusal):
        await exchange.refuse_unread(body)
        return None
    return ReadCall(api_key=key, terms=asked, content_type=_content_type(scope, media_type), body=body)


def _content_type(scope: Scope, media_type: str) -> str:
    """A missing type is taken for the expected one, as clients leave it out."""
    return (raw_header(scope, b"content-type") or media_type.encode()).decode("latin-1")


def _unreadable(scope: Scope, media_type: str) -> Refusal | None:
    """Why the body would not be what is expected, by what the head says of it."""
    if _content_type(scope, media_type).partition(";")[0].strip().lower() != media_type:
        return invalid(f"The body must be {media_type}.", "content-type")
    coding = (raw_header(scope, b"content-encoding") or b"identity").strip().lower()
    if coding != b"identity":
        return invalid("The body must not be compressed.", "content-encoding")
    return None
