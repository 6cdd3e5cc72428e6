"""The WebSocket face against a server that a test scripts frame by frame."""

import socket
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock
from trio_websocket import WebSocketRequest, serve_websocket

from lunanexa_client import (
    AsyncClient,
    AuthenticationError,
    ClientSettings,
    ConnectionFailed,
    InternalError,
    LunaNexaError,
    ProtocolError,
    RateLimited,
    Receipt,
    ResumeGone,
    Unavailable,
    WorkloadCancelled,
)
from lunanexa_client.address import parse_address
from lunanexa_client.link import open_link
from lunanexa_core.contract.frames import CREDITS
from tests.client.scripted import CountedIds
from tests.client.websocket_server import LIMIT_S, Peer, websocket_server

BODY = {"model": "tiny", "messages": []}
CHAT = "chat/completions"
RESPONSE = {"workload_id": "wl_w1", "state": "Succeeded", "usage": {"input": 1, "output": 2, "cached": 0}}


def client(settings: ClientSettings, **changes: Any) -> AsyncClient:
    return AsyncClient(settings=attrs.evolve(settings, **changes))


async def test_a_workload() -> None:
    async def script(peer: Peer) -> None:
        frame = await peer.accept()
        assert frame == {"type": "submit", "id": "w1", "endpoint": CHAT, "request": BODY, "resumable": False}
        await peer.events("w1", 1, 3)
        await peer.say("completed", id="w1", seq=4, response=RESPONSE)
        assert await peer.until_closed() == 1000

    async with websocket_server(script) as server:
        async with client(server.settings).connect(headers={"X-LunaNexa-Priority": "Critical"}) as connection:
            workload = await connection.submit(BODY, endpoint=CHAT)
            assert await workload.accepted() == "wl_w1"
            assert workload.queue_position == 0
            assert [data async for data in workload] == [1, 2, 3]
            assert await workload.result() == RESPONSE
            assert workload.usage is not None
            assert workload.usage.output_tokens == 2
        (request,) = server.requests
        assert request.path == "/v1/stream"
        assert request.proposed_subprotocols == ("lunanexa.v1",)
        assert (b"authorization", b"Bearer lnx_secret") in request.headers
        assert (b"x-lunanexa-priority", b"Critical") in request.headers
        assert (b"x-lunanexa-deadline-ms", b"600000") in request.headers


async def test_it_notices_a_machine_that_is_gone_as_calls_do() -> None:
    async with websocket_server(Peer.until_closed) as server, open_link(server.settings, ()) as link:
        assert isinstance(link.stream, trio.SocketStream)
        tcp = link.stream.socket
        assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert 0 < tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000
        assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60


async def test_many_workloads_keep_apart() -> None:
    async def script(peer: Peer) -> None:
        names = [(await peer.accept())["request"]["n"] for _ in range(3)]
        assert names == [0, 1, 2]
        for seq in (1, 2):
            for name in (3, 1, 2):
                await peer.say("event", id=f"w{name}", seq=seq, data=[name, seq])
        for name in (2, 3, 1):
            await peer.say("completed", id=f"w{name}", seq=3, response={"n": name})
        await peer.until_closed()

    async with websocket_server(script) as server, client(server.settings).connect() as connection:
        workloads = [await connection.submit({"n": number}) for number in range(3)]
        for name, workload in enumerate(workloads, start=1):
            assert [data async for data in workload] == [[name, 1], [name, 2]]
            assert await workload.result() == {"n": name}


async def test_credits_follow_what_was_read() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.events("w1", 1, CREDITS)
        sent, credit = CREDITS, 0
        while sent < 2 * CREDITS:
            frame = await peer.expect("credit")
            credit += frame["events"]
            await peer.events("w1", sent + 1, sent + frame["events"])
            sent += frame["events"]
        await peer.say("completed", id="w1", seq=sent + 1, response={"sent": sent})
        await peer.until_closed()

    async with websocket_server(script) as server, client(server.settings).connect() as connection:
        workload = await connection.submit(BODY, endpoint=CHAT)
        read = [data async for data in workload]
        assert read == list(range(1, len(read) + 1))
        assert await workload.result() == {"sent": len(read)}


async def test_result_reads_on_by_itself() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.events("w1", 1, CREDITS)
        await peer.expect("credit")
        await peer.say("completed", id="w1", seq=CREDITS + 1, response=RESPONSE)
        await peer.until_closed()

    async with websocket_server(script) as server, client(server.settings).connect() as connection:
        assert await (await connection.submit(BODY)).result() == RESPONSE


async def test_a_refusal_is_the_workloads_own() -> None:
    async def script(peer: Peer) -> None:
        await peer.expect("submit")
        error = {"code": "queue_full", "message": "full", "retryable": True, "retry_after_ms": 1_000}
        await peer.say("failed", id="w1", error=error)
        await peer.accept()
        await peer.say("completed", id="w2", seq=1, response=RESPONSE)
        await peer.until_closed()

    async with websocket_server(script) as server, client(server.settings).connect() as connection:
        refused = await connection.submit(BODY)
        for wait in (refused.accepted, refused.result, refused.__anext__):
            with pytest.raises(RateLimited, match="full") as caught:
                await wait()
            assert caught.value.retry_after_s == 1
        assert await (await connection.submit(BODY)).result() == RESPONSE


async def test_cancelling_one() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.events("w1", 1, 2)
        assert await peer.expect("cancel") == {"type": "cancel", "id": "w1"}
        await peer.say("event", id="w1", seq=3, data=3)
        await peer.say("cancelled", id="w1", receipt={"sequence": 9})
        await peer.until_closed()

    async with websocket_server(script) as server, client(server.settings).connect() as connection:
        workload = await connection.submit(BODY)
        assert await anext(workload) == 1
        assert await workload.cancel() == {"sequence": 9}
        assert [await anext(workload), await anext(workload)] == [2, 3]
        with pytest.raises(WorkloadCancelled) as caught:
            await workload.result()
        assert caught.value.receipt is not None
        assert caught.value.receipt.sequence == 9
        assert caught.value.workload_id == "wl_w1"
        assert await workload.cancel() == {"sequence": 9}


async def test_a_consumer_that_is_cancelled_leaves_the_connection_whole() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.events("w1", 1, 1)
        await peer.expect("submit")
        await peer.events("w1", 2, 2)
        await peer.say("completed", id="w1", seq=3, response=RESPONSE)
        await peer.until_closed()

    async with websocket_server(script) as server, client(server.settings).connect() as connection:
        workload = await connection.submit(BODY)
        assert await anext(workload) == 1
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(anext, workload)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        await connection.submit(BODY)
        assert await anext(workload) == 2
        assert await workload.result() == RESPONSE


async def test_goaway_lets_what_runs_end() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.say("goaway", retry_after_ms=2_000)
        await peer.events("w1", 1, 1)
        await peer.say("completed", id="w1", seq=2, response=RESPONSE)
        await peer.socket.aclose(1012)

    async with websocket_server(script) as server, client(server.settings).connect() as connection:
        workload = await connection.submit(BODY)
        assert await anext(workload) == 1
        with pytest.raises(Unavailable) as caught:
            await connection.submit(BODY)
        assert (caught.value.code, caught.value.retry_after_s) == ("draining", 2)
        assert await workload.result() == RESPONSE


@pytest.mark.parametrize(
    ("code", "kind", "told"),
    [
        (1000, Unavailable, "draining"),
        (1001, Unavailable, "draining"),
        (1012, Unavailable, "draining"),
        (1003, ProtocolError, "protocol_error"),
        (1007, ProtocolError, "protocol_error"),
        (1008, AuthenticationError, "invalid_api_key"),
        (1009, ProtocolError, "protocol_error"),
        (1011, InternalError, "internal"),
        (4008, ConnectionFailed, "slow_consumer"),
        (4000, ConnectionFailed, "connection_failed"),
    ],
)
async def test_close_codes(code: int, kind: type[LunaNexaError], told: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.events("w1", 1, 1)
        await peer.socket.aclose(code, "said so")

    async with websocket_server(script) as server, client(server.settings).connect() as connection:
        workload = await connection.submit(BODY)
        assert await anext(workload) == 1
        with pytest.raises(kind, match=f"close code {code}, said so") as caught:
            await anext(workload)
        assert (caught.value.code, caught.value.retryable) == (told, False)
        with pytest.raises(kind):
            await connection.submit(BODY)
        assert isinstance(connection.closed_because, kind)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"bytes", "binary"),
        ("{", "not JSON"),
        ('{"type":"event","id":"w1","seq":2,"data":0}', "event 1 is missing"),
        ('{"type":"event","id":"w1","seq":1}', "data"),
        ('{"type":"credit","id":"w1","events":1}', "type"),
        ('{"type":"completed","id":"w1","seq":9,"response":{}}', "event 1 is missing"),
    ],
)
async def test_a_server_that_breaks_the_protocol_is_left(message: str | bytes, told: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.socket.send_message(message)
        assert await peer.until_closed() == 1008

    async with websocket_server(script) as server, client(server.settings).connect() as connection:
        with pytest.raises(ProtocolError, match=told):
            await (await connection.submit(BODY)).result()


async def test_more_events_than_granted() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.events("w1", 1, CREDITS + 1)
        assert await peer.until_closed() == 1008

    async with websocket_server(script) as server, client(server.settings).connect() as connection:
        workload = await connection.submit(BODY)
        while connection.closed_because is None:
            await trio.sleep(0.001)
        assert [await anext(workload) for _ in range(CREDITS)] == list(range(1, CREDITS + 1))
        with pytest.raises(ProtocolError, match="granted"):
            await anext(workload)


async def test_a_frame_over_the_limit() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.say("event", id="w1", seq=1, data="x" * 2_000)
        assert await peer.until_closed() == 1009

    async with websocket_server(script) as server:
        limits = attrs.evolve(server.settings.limits, frame_bytes=1_000)
        async with client(server.settings, limits=limits).connect() as connection:
            with pytest.raises(ProtocolError, match="1009"):
                await (await connection.submit(BODY)).result()


async def test_a_peer_that_answers_no_ping_is_left() -> None:
    left = trio.Event()

    async def deaf(peer: Peer) -> None:
        await peer.accept()
        peer.socket._reader_running = False  # it reads no more, so no pong is sent
        await left.wait()

    async with websocket_server(deaf) as server:
        async with client(server.settings, ping_interval_ms=50, ping_timeout_ms=50).connect() as connection:
            with pytest.raises(ConnectionFailed):
                await (await connection.submit(BODY)).result()
        left.set()


async def test_a_dropped_connection_ends_what_is_not_resumable() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.events("w1", 1, 2)
        peer.vanish()

    async with websocket_server(script) as server, client(server.settings).connect() as connection:
        workload = await connection.submit(BODY)
        assert [await anext(workload), await anext(workload)] == [1, 2]
        with pytest.raises(ConnectionFailed) as caught:
            await anext(workload)
        assert caught.value.workload_id == "wl_w1"
        assert not caught.value.retryable


async def test_a_resumable_workload_goes_on_without_a_gap() -> None:
    read_one, resumed = trio.Event(), trio.Event()

    async def first(peer: Peer) -> None:
        frame = await peer.accept(resume_token="gateway-1.tok")
        assert frame["resumable"] is True
        await peer.accept()
        await peer.events("w1", 1, 5)
        await read_one.wait()
        peer.vanish()

    async def second(peer: Peer) -> None:
        assert await peer.frame() == {"type": "resume", "id": "w1", "after": 1, "token": "gateway-1.tok"}
        resumed.set()
        await peer.events("w1", 2, CREDITS + 1)
        await peer.expect("credit")
        await peer.say("completed", id="w1", seq=CREDITS + 2, response=RESPONSE)
        frame = await peer.accept()
        await peer.say("completed", id=frame["id"], seq=1, response={"new": True})
        await peer.until_closed()

    async with websocket_server(first, second) as server, client(server.settings).connect() as connection:
        workload = await connection.submit(BODY, resumable=True)
        other = await connection.submit(BODY)
        assert await anext(workload) == 1
        read_one.set()
        with pytest.raises(ConnectionFailed):
            await other.result()
        await resumed.wait()
        assert [data async for data in workload] == list(range(2, CREDITS + 2))
        assert await workload.result() == RESPONSE
        assert await (await connection.submit(BODY)).result() == {"new": True}


async def test_a_cancel_during_the_outage_is_said_again() -> None:
    async def first(peer: Peer) -> None:
        await peer.accept(resume_token="t")
        await peer.expect("cancel")
        peer.vanish()

    async def second(peer: Peer) -> None:
        await peer.expect("resume")
        await peer.expect("cancel")
        await peer.say("cancelled", id="w1", receipt=None)
        await peer.until_closed()

    async with websocket_server(first, second) as server, client(server.settings).connect() as connection:
        workload = await connection.submit(BODY, resumable=True)
        await workload.accepted()
        assert await workload.cancel() is None
        with pytest.raises(WorkloadCancelled):
            await workload.result()


async def test_events_that_are_kept_no_more() -> None:
    async def first(peer: Peer) -> None:
        await peer.accept(resume_token="t")
        await peer.socket.aclose(1012)

    async def second(peer: Peer) -> None:
        await peer.expect("resume")
        error = {"code": "resume_gone", "message": "gone", "retryable": False, "receipt": "/v1/workloads/wl_w1"}
        await peer.say("failed", id="w1", error=error)
        await peer.until_closed()

    async with websocket_server(first, second) as server, client(server.settings).connect() as connection:
        workload = await connection.submit(BODY, resumable=True)
        with pytest.raises(ResumeGone) as caught:
            await workload.result()
        assert caught.value.receipt == Receipt(address="/v1/workloads/wl_w1", workload_id="wl_w1")


@pytest.fixture
def clock() -> MockClock:
    """Virtual time goes on when no socket has moved for so long."""
    return MockClock(autojump_threshold=0.01)


async def test_a_server_that_fails_each_time_is_asked_ever_more_seldom_and_then_no_more(clock: MockClock) -> None:
    async def first(peer: Peer) -> None:
        await peer.accept(resume_token="t")
        await peer.socket.aclose(1011)

    async def failing(peer: Peer) -> None:
        await peer.expect("resume")
        await peer.socket.aclose(1011)

    # After 0.2, 0.4, 0.8, 1.6 and 3.2 seconds, and then every 5, until 30 are over.
    async with websocket_server(first, *[failing] * 9) as server:
        async with AsyncClient(settings=server.settings, ids=CountedIds()).connect() as connection:
            workload = await connection.submit(BODY, resumable=True)
            with pytest.raises(InternalError):
                await workload.result()
        assert clock.current_time() == pytest.approx(30, abs=0.1)
        assert len(server.requests) == 10


async def test_a_key_that_was_revoked_meanwhile_is_not_shown_again_and_again() -> None:
    async def first(peer: Peer) -> None:
        await peer.accept(resume_token="t")
        await peer.socket.aclose(1008)

    async with websocket_server(first) as server, client(server.settings).connect() as connection:
        workload = await connection.submit(BODY, resumable=True)
        with pytest.raises(AuthenticationError):
            await workload.result()


async def test_the_handshake_is_refused() -> None:
    async def refuse(request: WebSocketRequest) -> None:
        body = b'{"error":{"code":"invalid_api_key","message":"no such key"}}'
        await request.reject(401, extra_headers=[(b"x-request-id", b"req_1")], body=body)

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            server = await nursery.start(serve_websocket, refuse, "127.0.0.1", 0, None)
            settings = ClientSettings(address=parse_address(f"http://127.0.0.1:{server.port}"))
            with pytest.raises(AuthenticationError, match="no such key") as caught:
                await client(settings).connect().__aenter__()
            assert (caught.value.status, caught.value.request_id) == (401, "req_1")
            nursery.cancel_scope.cancel()


async def test_nobody_there() -> None:
    with trio.socket.socket() as unused:
        await unused.bind(("127.0.0.1", 0))
        settings = ClientSettings(address=parse_address(f"http://127.0.0.1:{unused.getsockname()[1]}"))
        with pytest.raises(ConnectionFailed, match="no connection") as caught:
            await client(settings).connect().__aenter__()
        assert caught.value.retryable


async def test_another_protocol() -> None:
    async def script(peer: Peer) -> None:
        await peer.until_closed()

    async with websocket_server(script, subprotocol=None) as server:
        with pytest.raises(ProtocolError, match=r"lunanexa\.v1"):
            await client(server.settings).connect().__aenter__()


async def test_an_exception_of_the_callers_comes_out_as_it_is() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        assert await peer.until_closed() == 1000

    async def fail(settings: ClientSettings) -> None:
        async with client(settings).connect() as connection:
            await (await connection.submit(BODY)).accepted()
            raise LookupError("mine")

    async with websocket_server(script) as server:
        with pytest.raises(LookupError, match="mine"):
            await fail(server.settings)


async def test_a_request_without_a_json_form() -> None:
    async def script(peer: Peer) -> None:
        await peer.until_closed()

    async with websocket_server(script) as server, client(server.settings).connect() as connection:
        for wrong in (float("nan"), {1}):
            with pytest.raises(ValueError, match="JSON"):
                await connection.submit({"a": wrong})
