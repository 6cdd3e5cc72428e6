"""The opening of a WebSocket: what a client must say, and how it is refused.

Browsers can set no header but ``Sec-WebSocket-Protocol``, so the key may also come there, as a second offer
``lunanexa.key.KEY``. It never stands in the address, which is logged everywhere.
"""

from typing import Final

import attrs

from lunanexa_adapters.asgi.errors import error_answer, invalid
from lunanexa_adapters.asgi.headers import bearer, terms
from lunanexa_adapters.websocket.calls import Caller
from lunanexa_core.contract.frames import SUBPROTOCOL
from lunanexa_core.ids import RequestId
from lunanexa_core.keys import secret_digest
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_ports.asgi import Scope, Send

KEY_PREFIX: Final = "lunanexa.key."
_NO_KEY: Final = Refusal(
    outcome=Outcome.INVALID_API_KEY,
    message=f"No API key was given. Send it as 'Authorization: Bearer KEY', or offer the subprotocol {KEY_PREFIX}KEY.",
)


def read_handshake(scope: Scope) -> Caller | Refusal:
    """Who asks for a connection; the key is not checked."""
    offered = [str(name) for name in scope["subprotocols"]]
    if SUBPROTOCOL not in offered:
        return invalid(f"Offer the subprotocol {SUBPROTOCOL}.", "sec-websocket-protocol")
    key, asked = bearer(scope), terms(scope)
    if isinstance(key, Refusal):
        return key
    if isinstance(asked, Refusal):
        return asked
    api_key = key or next((name.removeprefix(KEY_PREFIX) for name in offered if name.startswith(KEY_PREFIX)), None)
    if not api_key:
        return _NO_KEY
    # Of a header that is for one workload there can be no meaning for many.
    return Caller(
        api_key=api_key,
        key_digest=secret_digest(api_key),
        terms=attrs.evolve(asked, idempotency_key=None, trace=None),
    )


async def refuse_handshake(scope: Scope, send: Send, refusal: Refusal, request: RequestId) -> None:
    """The refusal as an HTTP answer where the server can give one; it makes a 403 of it elsewhere."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1000})
        return
    answer = error_answer(refusal, request)
    await send({"type": "websocket.http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "websocket.http.response.body", "body": answer.body, "more_body": False})
