"""The door of the edge: its guard, WebSockets that are not served yet, lifespan, and what servers render."""

import json
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from lunanexa_adapters.asgi.control import build_control_app
from lunanexa_adapters.asgi.errors import error_answer, render_error
from lunanexa_adapters.asgi.root import Root
from lunanexa_core.outcomes import TABLE, Outcome, Refusal
from lunanexa_ports.asgi import AsgiApplication, Message, Receive, Scope, Send
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.rng import Streams
from tests.adapters.asgi_driver import Client
from tests.adapters.edge import KEY, OPERATOR_KEY, edge


class Broken(AsgiApplication):
    """An application with a bug, before or after it began to answer."""

    def __init__(self, *, begun: bool) -> None:
        self._begun = begun

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        if self._begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        async with trio.open_nursery():
            raise ZeroDivisionError("/srv/secret/path")


def root_of(app: AsgiApplication) -> Root:
    ids = SimulatedIds(Streams(1).stream("ids"), SimulatedClock())
    return Root(data_plane=app, control=app, stream=app, ids=ids)


async def test_a_bug_is_a_500_that_tells_nothing() -> None:
    with capture_logs() as logs:
        client = await Client("GET", "/health", headers=[(b"x-request-id", b"r-1")]).call(root_of(Broken(begun=False)))
    assert (client.status, client.error()["code"]) == (500, "internal")
    assert client.error()["request_id"] == "r-1"
    assert b"secret" not in client.body
    (line,) = logs
    assert (line["event"], line["request_id"], line["log_level"]) == ("request_failed", "r-1", "error")
    assert isinstance(line["exc_info"], BaseException)


async def test_a_bug_after_the_beginning_cuts_the_answer() -> None:
    client = Client("GET", "/health")
    with capture_logs() as logs, pytest.raises(ExceptionGroup):
        await client.call(root_of(Broken(begun=True)))
    assert not client.complete
    assert logs[0]["begun"] is True


async def test_a_client_that_left_is_no_fault() -> None:
    async def send(_: Message) -> None:
        await trio.lowlevel.checkpoint()
        raise OSError("the client has gone")

    async def receive() -> Message:
        await trio.lowlevel.checkpoint()
        return {"type": "http.disconnect"}

    scope: Scope = {"type": "http", "method": "GET", "path": "/admin/v1/status", "headers": []}
    with capture_logs() as logs:
        await root_of(Broken(begun=True))(scope, receive, send)
    assert logs == []


async def test_a_bug_behind_quart_is_told_the_same(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock, replays=False) as one:
        # The kernel's table is broken on purpose.
        one.world.kernel.state.keys.clear()
        with capture_logs() as logs:
            client = await Client("GET", "/admin/v1/status", headers=[OPERATOR_KEY]).call(one.root)
        assert (client.status, client.error()["code"]) == (500, "internal")
        assert [line["event"] for line in logs if line["log_level"] == "error"] == ["request_failed"]


async def test_a_kernel_that_is_gone_is_a_503(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        one.world.kernel._inbox.close()
        for method, path, body, key in (
            ("POST", "/v1/completions", b'{"model":"tiny"}', KEY),
            ("POST", "/admin/v1/drain", b"", OPERATOR_KEY),
            ("DELETE", "/admin/v1/deployments/d1", b"", OPERATOR_KEY),
        ):
            client = await Client(method, path, body, [key]).call(one.root)
            assert (client.status, client.error()["code"]) == (503, "store_unavailable")


async def test_lifespan_is_answered() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        await trio.lowlevel.checkpoint()
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        await trio.lowlevel.checkpoint()
        sent.append(message)

    await root_of(Broken(begun=False))({"type": "lifespan"}, receive, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_its_answer(outcome: Outcome) -> None:
    answer = error_answer(Refusal(outcome=outcome, message="m", param="p", retry_after_ms=1_001), "r")
    headers = dict(answer.headers)
    assert answer.status == TABLE[outcome].http_status
    assert json.loads(answer.body)["error"]["code"] == outcome.value
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (b"2", b"1001")
    untold = dict(error_answer(Refusal(outcome=outcome, message="m"), "r").headers)
    assert (b"retry-after" in untold) is (answer.status in (429, 503))
    assert headers[b"x-should-retry"] == (b"true" if TABLE[outcome].retry else b"false")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "invalid_request"),
        (408, "request_timeout"),
        (413, "payload_too_large"),
        (418, "invalid_request"),
        (431, "head_too_large"),
        (500, "internal"),
        (503, "no_capacity"),
        (505, "internal"),
    ],
)
def test_what_a_server_refuses_has_the_same_shape(status: int, code: str) -> None:
    headers, body = render_error(status)
    told = dict(headers)
    assert told[b"content-type"] == b"application/json"
    assert (b"retry-after" in told) == (status == 503)
    assert told[b"x-should-retry"] in (b"true", b"false")
    assert json.loads(body)["error"]["code"] == code


def test_the_control_application_keeps_no_secret_and_no_session() -> None:
    planes: Any = dict.fromkeys(
        ("operator", "fleet", "keys", "insight", "journal", "recovery", "trust", "health", "ids")
    )
    app = build_control_app(**planes)
    assert app.quart.secret_key is None
    assert not app.quart.has_static_folder
