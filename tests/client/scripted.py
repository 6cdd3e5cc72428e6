"""Clients over a scripted server: no sockets, identifiers and jitter that are known."""

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import attrs

from lunanexa_client import AsyncClient, ClientSettings
from lunanexa_client.address import parse_address
from lunanexa_core.outcomes import Outcome, Refusal, error_document
from lunanexa_ports.http_client import HttpRequest
from lunanexa_ports.ids import IdSource
from tests.apps.scripted_http import Reply, ScriptedHttp

SETTINGS = ClientSettings(address=parse_address("http://luna:8400/v1"), api_key="lnx_secret")
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
EVENTS = ((b"content-type", b"text/event-stream; charset=utf-8"),)


class CountedIds(IdSource):
    """No jitter, identifiers in order."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def new(self, kind: str) -> str:
        return f"{kind}_{next(self._numbers)}"

    def secret(self) -> str:
        raise AssertionError("a client has no secrets to make")

    def below(self, limit: int) -> int:
        return 0


@attrs.frozen
class Script:
    """A client, and what its server was asked."""

    client: AsyncClient
    http: ScriptedHttp

    @property
    def requests(self) -> list[HttpRequest]:
        return self.http.requests


def scripted(*steps: Reply | Exception | Callable[[HttpRequest], Reply], **settings: Any) -> Script:
    """The server takes one step a request; the last one is repeated."""
    left = list(steps)

    def server(request: HttpRequest) -> Reply:
        step = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(step, Exception):
            raise step
        return step if isinstance(step, Reply) else step(request)

    http = ScriptedHttp(server)
    return Script(AsyncClient(settings=attrs.evolve(SETTINGS, **settings), http=http, ids=CountedIds()), http)


def answer(document: Any, status: int = 200, **headers: str) -> Reply:
    return Reply(status, [json.dumps(document).encode()], pairs(headers))


def refused(outcome: Outcome, **headers: str) -> Reply:
    """As the service tells of it."""
    row = Refusal(outcome=outcome, message="because").row
    told = {"x_should_retry": "true" if row.retry else "false"} | headers
    return answer(error_document(Refusal(outcome=outcome, message="because"), "req_1"), row.http_status, **told)


def stream(*pieces: bytes) -> Reply:
    return Reply(200, pieces, EVENTS)


def chunk(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


def pairs(headers: dict[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items())


def headers_of(request: HttpRequest) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in request.headers}
