"""The sync face: threads, interruption and closing, over sockets; TLS for both faces."""

import json
import signal
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from lunanexa_adapters.http_server.lean import serve_lean
from lunanexa_client import AsyncClient, Client, ConnectionFailed, InvalidRequest, StreamCut
from lunanexa_client.portal import Portal
from lunanexa_ports.asgi import Receive, Scope, Send
from tests.adapters.http_tools import render_error
from tests.adapters.test_http_tls import self_signed
from tests.client.scripted import BODY, chunk
from tests.client.websocket_server import Peer, websocket_server

WAIT_S = 20
"""Generous: a test that reaches it has failed."""


class Service:
    """Answers chats, streams until the client leaves, and is silent when told. ``left``: a client went away, be it
    while it was waited for or while it was written to."""

    def __init__(self) -> None:
        self.asked, self.left = threading.Event(), threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await self._answer(await self._body(receive), receive, send)
        except OSError:
            self.left.set()
            raise

    async def _body(self, receive: Receive) -> Any:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        return json.loads(body or b"{}")

    async def _answer(self, body: Any, receive: Receive, send: Send) -> None:
        self.asked.set()
        if body.get("wait"):
            await self._until_left(receive)
        elif body.get("stream"):
            await send(start(200, b"text/event-stream"))
            await send({"type": "http.response.body", "body": chunk("Hal") + chunk("lo"), "more_body": True})
            if body.get("endless"):
                await self._until_left(receive)
            else:
                await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        elif body.get("bad"):
            await reply(send, {"error": {"code": "invalid_request", "message": "no", "param": "bad"}}, 400)
        else:
            await reply(send, {"data": [{"id": "tiny"}], "choices": [{"message": {"content": "Hello"}}]})

    async def _until_left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()


def start(status: int, kind: bytes = b"application/json") -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]}


async def reply(send: Send, document: Any, status: int = 200) -> None:
    await send(start(status))
    await send({"type": "http.response.body", "body": json.dumps(document).encode()})


@contextmanager
def serving(application: Any, *, ssl_context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serves in a loop of its own, so that the test's thread can be a plain one. Gives ``host:port``."""
    portal = Portal()

    async def begin() -> str:
        listeners: list[Any] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port: int = listeners[0].socket.getsockname()[1]
        if ssl_context is not None:
            listeners = [trio.SSLListener(one, ssl_context, https_compatible=True) for one in listeners]

        async def serve() -> None:
            await serve_lean(application, listeners, render_error=render_error, on_fault=faults.append)

        portal.spawn(serve)
        return f"127.0.0.1:{port}"

    faults: list[BaseException] = []
    try:
        yield portal.call(begin)
    finally:
        portal.close()
    assert not faults


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with serving(service) as address, Client(f"http://{address}/v1", "lnx_x") as found:
        yield found


def test_calls(client: Client) -> None:
    assert [model.id for model in client.models()] == ["tiny"]
    assert client.chat(BODY).text == "Hello"
    assert client.post("responses", BODY).status == 200
    with pytest.raises(InvalidRequest, match="no") as caught:
        client.completions({"bad": True})
    assert caught.value.param == "bad"
    with pytest.raises(ValueError, match="JSON"):
        client.embeddings({"input": {1}})


def test_streams(client: Client, service: Service) -> None:
    with client.stream("chat/completions", BODY) as events:
        assert events.head.status == 200
        assert [event.text for event in events] == ["Hal", "lo"]
        assert list(events) == []
    with client.stream("chat/completions", {**BODY, "endless": True}) as events:
        assert next(events).text == "Hal"
    assert service.left.wait(WAIT_S)


def test_threads_share_a_client(client: Client) -> None:
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(client.chat(BODY).text)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert texts == ["Hello"] * 20


def test_an_interrupt_ends_the_call_and_the_request(client: Client, service: Service) -> None:
    main = threading.get_ident()

    def interrupt() -> None:
        assert service.asked.wait(WAIT_S)
        signal.pthread_kill(main, signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        client.chat({**BODY, "wait": True})
    helper.join(WAIT_S)
    assert service.left.wait(WAIT_S)
    assert client.chat(BODY).text == "Hello"


def test_closing_ends_calls_in_progress(client: Client, service: Service) -> None:
    ended: list[Exception] = []

    def ask() -> None:
        try:
            client.chat({**BODY, "wait": True})
        except ConnectionFailed as error:
            ended.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert service.asked.wait(WAIT_S)
    client.close()
    thread.join(WAIT_S)
    assert len(ended) == 1
    assert service.left.wait(WAIT_S)
    client.close()
    with pytest.raises(ConnectionFailed, match="closed"):
        client.models()


def test_a_stream_outlived_by_its_client(client: Client) -> None:
    events = client.stream("chat/completions", {**BODY, "endless": True})
    assert next(events).text == "Hal"
    client.close()
    events.close()
    with pytest.raises((ConnectionFailed, StreamCut)):
        next(events)


def test_no_thread_is_left(service: Service) -> None:
    before = threading.active_count()
    with serving(service) as address:
        for _ in range(3):
            with Client(f"http://{address}") as client:
                client.models()
    assert threading.active_count() == before


async def test_a_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.events("w1", 1, 3)
        await peer.say("completed", id="w1", seq=4, response={"state": "Succeeded"})
        await peer.accept()
        await peer.expect("cancel")
        await peer.say("cancelled", id="w2", receipt={"sequence": 1})
        assert await peer.until_closed() == 1000

    def talk(client: Client) -> None:
        with client, client.connect() as connection:
            workload = connection.submit(BODY, endpoint="chat/completions")
            assert workload.accepted() == workload.workload_id == "wl_w1"
            assert list(workload) == [1, 2, 3]
            assert workload.result() == {"state": "Succeeded"}
            assert workload.usage is None
            assert connection.submit(BODY).cancel() == {"sequence": 1}
            assert connection.closed_because is None
            connection.close()
            with pytest.raises(ConnectionFailed):
                connection.submit(BODY)

    async with websocket_server(script) as server:
        await trio.to_thread.run_sync(talk, Client(settings=server.settings))


async def test_what_connecting_raises() -> None:
    def talk() -> None:
        with Client("http://127.0.0.1:1") as client, pytest.raises(ConnectionFailed):
            client.connect()

    await trio.to_thread.run_sync(talk)


def test_tls_is_verified(tmp_path: Path, service: Service) -> None:
    with serving(service, ssl_context=self_signed(tmp_path)) as address:
        with Client(f"https://{address}", ca_file=str(tmp_path / "cert.pem")) as client:
            assert client.chat(BODY).text == "Hello"
        with (
            Client(f"https://{address}", max_retries=0) as stranger,
            pytest.raises(ConnectionFailed, match=r"(?i)certificate"),
        ):
            stranger.chat(BODY)
    with pytest.raises(OSError, match="No such file"):
        AsyncClient("https://example", ca_file=str(tmp_path / "none.pem"))


def test_websockets_over_tls_are_verified_too(tmp_path: Path) -> None:
    async def talk() -> None:
        context = self_signed(tmp_path)
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                server = await nursery.start(serve_websocket_with, context)
                async with AsyncClient(server, ca_file=str(tmp_path / "cert.pem")) as client, client.connect():
                    pass
                async with AsyncClient(server) as stranger:
                    with pytest.raises(ConnectionFailed, match=r"(?i)certificate"):
                        await stranger.connect().__aenter__()
                nursery.cancel_scope.cancel()

    trio.run(talk)


async def serve_websocket_with(context: ssl.SSLContext, task_status: trio.TaskStatus[str]) -> None:
    from trio_websocket import WebSocketRequest, serve_websocket

    async def handle(request: WebSocketRequest) -> None:
        socket = await request.accept(subprotocol="lunanexa.v1")
        await Peer(socket).until_closed()

    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve_websocket, handle, "127.0.0.1", 0, context)
        task_status.started(f"https://127.0.0.1:{server.port}")
