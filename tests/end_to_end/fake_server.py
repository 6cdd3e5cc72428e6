"""A model server of somebody else, made of recorded answers: it lists its models, and answers chats for them."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_adapters.http_server.listeners import addresses, open_listeners
from lunanexa_adapters.http_server.serve import serve_http
from lunanexa_ports.asgi import Message, Receive, Scope, Send
from tests.adapters.http_tools import render_error

MODELS = "/v1/models"


class FakeServer:
    """``answers``: bodies by path. With a ``key`` everything under ``/v1`` asks for it. It can be closed and opened
    again, on the port that it had first."""

    def __init__(self, answers: Mapping[str, bytes], key: str | None = None) -> None:
        self.asked: list[str] = []
        """Models of the chats that were answered."""
        self._answers = dict(answers)
        self._key = key
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def models(self) -> list[str]:
        return [card["id"] for card in json.loads(self._answers[MODELS])["data"]]

    def add(self, name: str) -> None:
        """One more model, as Ollama lists one."""
        listed, tags = json.loads(self._answers[MODELS]), json.loads(self._answers["/api/tags"])
        listed["data"].append({**listed["data"][0], "id": name})
        tags["models"].append({**tags["models"][0], "name": name, "model": name})
        self._put(listed, tags)

    def remove(self, name: str) -> None:
        listed, tags = json.loads(self._answers[MODELS]), json.loads(self._answers["/api/tags"])
        listed["data"] = [card for card in listed["data"] if card["id"] != name]
        tags["models"] = [entry for entry in tags["models"] if entry["name"] != name]
        self._put(listed, tags)

    def _put(self, listed: object, tags: object) -> None:
        self._answers |= {MODELS: json.dumps(listed).encode(), "/api/tags": json.dumps(tags).encode()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """It answers within the block; at its end every connection is cut."""
        listeners = await open_listeners("127.0.0.1", self._port)
        self._port = addresses(listeners)[0][1]
        faults: list[BaseException] = []
        serve = partial(
            serve_http, self, listeners, render_error=render_error, on_fault=faults.append, limits=ServerLimits()
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(serve)
            yield
            nursery.cancel_scope.cancel("the server goes away")
        assert not faults, faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, answer = self._answer(scope, body)
        await _send(send, status, answer)

    def _answer(self, scope: Scope, body: bytes) -> tuple[int, bytes]:
        path = scope["path"]
        given = dict(scope["headers"]).get(b"authorization")
        if self._key is not None and path.startswith("/v1/") and given != b"Bearer " + self._key.encode():
            return 401, b'{"error":"Unauthorized"}'
        if path == "/v1/chat/completions":
            return self._chat(json.loads(body))
        known = self._answers.get(path)
        return (404, b'{"error":"not found"}') if known is None else (200, known)

    def _chat(self, request: dict[str, Any]) -> tuple[int, bytes]:
        model = request["model"]
        if model not in self.models:
            return 404, b'{"error":{"message":"no such model"}}'
        self.asked.append(model)
        head = {"id": "chatcmpl-1", "created": 1, "model": model}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        if not request.get("stream"):
            message = {"role": "assistant", "content": "the sea"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return 200, json.dumps({**head, "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
        chunk = {**head, "object": "chat.completion.chunk"}
        choices: list[list[dict[str, Any]]] = [
            [{"index": 0, "delta": {"role": "assistant", "content": "the sea"}, "finish_reason": None}],
            [{"index": 0, "delta": {}, "finish_reason": "stop"}],
        ]
        events = [json.dumps({**chunk, "choices": choice}) for choice in choices]
        events += [json.dumps({**chunk, "choices": [], "usage": usage}), "[DONE]"]
        return 200, "".join(f"data: {event}\n\n" for event in events).encode()


async def _send(send: Send, status: int, body: bytes) -> None:
    kind = b"text/event-stream" if body.startswith(b"data:") else b"application/json"
    start: Message = {"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]}
    await send(start)
    await send({"type": "http.response.body", "body": body})
