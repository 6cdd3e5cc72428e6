"""What the front and the console say by themselves, in the one error shape. A controller has other codes."""

import json
from typing import Final

import attrs

from lunanexa_adapters.asgi.exchange import Exchange
from lunanexa_core.ids import RequestId

RETRY_AFTER_S: Final = 1


@attrs.frozen(kw_only=True)
class Problem:
    """Why there is no other answer."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry: bool = False

    def body(self, request: RequestId) -> bytes:
        """As a client of OpenAI's shape reads it."""
        error = {
            "message": self.message,
            "type": "server_error" if self.status >= 500 else "invalid_request_error",
            "param": self.param,
            "code": self.code,
            "retryable": self.retry,
            "request_id": request,
        }
        return json.dumps({"error": error}, separators=(",", ":")).encode()

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Beside content type and length."""
        listed = [(b"x-should-retry", b"true" if self.retry else b"false")]
        return [*listed, (b"retry-after", b"%d" % RETRY_AFTER_S)] if self.retry else listed


UNREACHABLE: Final = Problem(
    status=502,
    code="controller_unreachable",
    message="No controller of the simulated fleet can be reached: it is down, or packets to it are lost.",
    retry=True,
)
BROKE: Final = Problem(
    status=502,
    code="controller_broke",
    message="The connection to the controller broke before an answer began. The request may have been run.",
    retry=True,
)


async def tell(exchange: Exchange, problem: Problem) -> None:
    """The whole answer."""
    body = problem.body(exchange.request)
    await exchange.send_whole(problem.status, b"application/json", body, problem.headers)
