"""A client of the simulated world: it speaks HTTP to the real edge, and knows what the answers must be.

The reference engine answers one request in one way only, so an oracle beside the world, which nothing in
the world can touch, tells what a whole answer is; what came of a cut one must be its beginning.
"""

import enum
import json
from collections.abc import Mapping
from typing import Any, Final

import attrs
import trio

from lunanexa_apps.engine.answers import plan_answer
from lunanexa_apps.engine.errors import ApiError
from lunanexa_apps.engine.language_model import LanguageModel
from lunanexa_apps.engine.requests import read_chat
from lunanexa_apps.engine.settings import EngineSettings
from lunanexa_core.sse import SseSplitter, data_of
from lunanexa_ports.http_client import Headers, HttpBroken, HttpClient, HttpRequest, HttpResponse, HttpUnreachable
from lunanexa_simulation.trace import Trace

_BODY_BYTES_MAX: Final = 4 * 1024 * 1024
_DONE: Final = b"[DONE]"


class Ending(enum.Enum):
    """How an answer ended for its client."""

    WHOLE = "whole"
    """A whole unary answer, or a stream with its ``[DONE]``."""
    REFUSED = "refused"
    """A status of 400 or above, with the one error shape."""
    ERROR_FRAME = "error_frame"
    """A stream that said that it failed, and ended without ``[DONE]``."""
    CUT = "cut"
    """The connection broke: nobody said anything."""
    UNREACHABLE = "unreachable"


@attrs.frozen(kw_only=True)
class Answer:
    """What a client got."""

    ending: Ending
    status: int | None = None
    text: str = ""
    error: str | None = None
    """``error.code`` of a refusal or an error frame."""
    workload: str | None = None
    usage: Mapping[str, int] | None = None
    retry_after_s: int | None = None
    """What ``Retry-After`` of a refusal said."""
    replayed: bool = False
    """Whether it was kept and given again."""


class Oracle:
    """What the reference engine must answer, worked out by itself. ``settings`` are the engine's but for time."""

    def __init__(self, settings: EngineSettings, model: LanguageModel) -> None:
        self._settings = settings
        self._model = model

    def expect(self, body: Mapping[str, Any]) -> str:
        """The text of a whole answer to a chat request."""
        request = read_chat({**body, "model": self._settings.names[0]})
        assert not isinstance(request, ApiError), request
        answer = plan_answer(request, self._settings, self._model, created=0, new_id=lambda: "")
        assert not isinstance(answer, ApiError), answer
        texts = []
        while answer.generation.finish_reason is None:
            texts.append(answer.generation.advance())
        return "".join(texts)

    def fault(self, body: Mapping[str, Any], answer: Answer) -> str | None:
        """What is wrong with the text of an answer."""
        expected = self.expect(body)
        if answer.ending is Ending.WHOLE and answer.text != expected:
            return f"the whole answer is {answer.text!r}, not {expected!r}"
        if not expected.startswith(answer.text):
            return f"{answer.text!r} is no beginning of {expected!r}"
        return None


@attrs.define
class _Stream:
    """Events of a stream, read into an answer."""

    text: str = ""
    error: str | None = None
    usage: Mapping[str, int] | None = None
    done: bool = False

    def read(self, data: bytes) -> None:
        assert not self.done, f"an event after [DONE]: {data!r}"
        if data == _DONE:
            self.done = True
            return
        document = json.loads(data)
        if "error" in document:
            self.error = document["error"]["code"]
            return
        self.usage = document.get("usage") or self.usage
        for choice in document["choices"]:
            self.text += choice["delta"].get("content") or ""


class Client:
    """Calls the edge at ``host:port`` with one API key; every answer is a line of the trace."""

    def __init__(self, http: HttpClient, *, host: str, port: int, api_key: str, trace: Trace, name: str) -> None:
        self._http = http
        self._host = host
        self._port = port
        self._api_key = api_key
        self._trace = trace
        self._name = name
        self.begun = 0
        """Streams that have brought text so far."""

    def turn_to(self, host: str) -> None:
        """Calls that begin from now on go to another host."""
        self._host = host

    async def chat(
        self,
        body: Mapping[str, Any],
        *,
        deadline_ms: int | None = None,
        headers: Mapping[str, str] | None = None,
        pause_ms: int = 0,
    ) -> Answer:
        """One chat request, unary or streamed as ``body`` says. ``pause_ms``: a reader so slow, at each piece."""
        request = self._request("POST", "/v1/chat/completions", self._api_key, body)
        more = tuple((name.encode(), value.encode()) for name, value in (headers or {}).items())
        request = attrs.evolve(request, headers=(*request.headers, *more))
        if deadline_ms is not None:
            told_ms = str(deadline_ms).encode()
            request = attrs.evolve(request, headers=(*request.headers, (b"x-lunanexa-deadline-ms", told_ms)))
        kind = "stream" if body.get("stream") else "chat"
        answer = Answer(ending=Ending.UNREACHABLE)
        self._trace.record(self._name, f"{kind}: asked")
        try:
            async with self._http.exchange(request) as response:
                if body.get("stream") and response.status == 200:
                    answer = await self._read_stream(response, pause_ms)
                else:
                    answer = await self._read_whole(response)
        except HttpUnreachable:
            pass
        except HttpBroken:
            answer = Answer(ending=Ending.CUT)
        told = "" if answer.error is None else f" {answer.error}"
        self._trace.record(self._name, f"{kind}: {answer.ending.value}{told}, {len(answer.text)} characters")
        return answer

    async def call(self, method: str, target: str, token: str | None = None, body: object = None) -> tuple[int, Any]:
        """Any route that answers JSON: status and document. Raises as the port does."""
        async with self._http.exchange(self._request(method, target, token or self._api_key, body)) as response:
            data = await response.read(_BODY_BYTES_MAX)
            self._trace.record(self._name, f"{method} {target}: {response.status}")
            return response.status, json.loads(data)

    async def models(self) -> tuple[str, ...]:
        """What is listed; nothing where the service can't be reached or refuses."""
        try:
            status, document = await self.call("GET", "/v1/models")
        except (HttpUnreachable, HttpBroken):
            return ()
        return tuple(card["id"] for card in document["data"]) if status == 200 else ()

    def _request(self, method: str, target: str, token: str, body: object) -> HttpRequest:
        data = b"" if body is None else json.dumps(body).encode()
        headers: Headers = ((b"authorization", b"Bearer " + token.encode()),)
        if body is not None:
            headers = (*headers, (b"content-type", b"application/json"))
        return HttpRequest(method=method, host=self._host, port=self._port, target=target, headers=headers, body=data)

    async def _read_whole(self, response: HttpResponse) -> Answer:
        document = json.loads(await response.read(_BODY_BYTES_MAX))
        workload = _workload(response)
        if response.status >= 400:
            return Answer(
                ending=Ending.REFUSED,
                status=response.status,
                error=document["error"]["code"],
                workload=workload,
                retry_after_s=_retry_after_s(response),
            )
        return Answer(
            ending=Ending.WHOLE,
            status=response.status,
            text=document["choices"][0]["message"]["content"],
            usage=document["usage"],
            workload=workload,
            replayed=_replayed(response),
        )

    async def _read_stream(self, response: HttpResponse, pause_ms: int) -> Answer:
        splitter, stream, broken = SseSplitter(_BODY_BYTES_MAX), _Stream(), False
        try:
            async for chunk in response.chunks():
                for event in splitter.feed(chunk):
                    data = data_of(event)
                    if data is not None:
                        before = stream.text
                        stream.read(data)
                        self.begun += not before and bool(stream.text)
                if pause_ms:
                    await trio.sleep(pause_ms / 1_000)
        except HttpBroken:
            broken = True
        if stream.done and not broken:
            ending = Ending.WHOLE
        else:
            ending = Ending.CUT if stream.error is None else Ending.ERROR_FRAME
        return Answer(
            ending=ending,
            status=response.status,
            text=stream.text,
            error=stream.error,
            usage=stream.usage,
            workload=_workload(response),
            replayed=_replayed(response),
        )


def _replayed(response: HttpResponse) -> bool:
    return (b"x-lunanexa-replayed", b"true") in response.headers


def _workload(response: HttpResponse) -> str | None:
    return next((value.decode() for name, value in response.headers if name == b"x-lunanexa-workload-id"), None)


def _retry_after_s(response: HttpResponse) -> int | None:
    return next((int(value) for name, value in response.headers if name == b"retry-after"), None)
