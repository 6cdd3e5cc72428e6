"""The library against the real service: its edge, gateway and kernel, over sockets of this machine."""

import pytest
import trio
from trio.testing import MockClock

from lunanexa_client import (
    AsyncClient,
    AuthenticationError,
    Conflict,
    EngineFailed,
    InvalidRequest,
    NotFound,
    WorkloadCancelled,
)
from lunanexa_client.answers import text_of
from lunanexa_core.outcomes import Outcome
from tests.adapters.test_bad_clients import Served, served
from tests.apps.engine_driver import engine
from tests.apps.gateway_fleet import DONE, USAGE, Part, Script, ScriptedEngine, delta
from tests.core.builders import SECRET

LIMIT_S = 120
"""Of virtual time."""
PAYLOAD = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 8}
BODY = {"model": "tiny", **PAYLOAD}
ENVELOPE = {"capability": "TextGenerate", "model": "tiny", "payload": PAYLOAD}
CHAT = "chat/completions"


@pytest.fixture
def clock() -> MockClock:
    """Virtual time goes on when no socket has moved for so long."""
    return MockClock(autojump_threshold=0.01)


def client(server: Served, key: str = SECRET) -> AsyncClient:
    host, port = server.address
    return AsyncClient(f"http://{host}:{port}/v1", key, max_retries=0)


async def test_calls(clock: MockClock) -> None:
    async with served(clock, engine(names=("tiny",))) as server, client(server) as luna:
        assert [model.id for model in await luna.models()] == ["tiny"]
        answer = await luna.chat(BODY)
        assert answer.text
        assert answer.workload_id
        assert answer.usage is not None
        assert answer.usage.output_tokens == 8
        async with luna.stream(CHAT, {**BODY, "stream_options": {"include_usage": True}}) as events:
            assert "".join([event.text async for event in events]) == answer.text
        assert events.usage == answer.usage
        assert events.head.workload_id
        with pytest.raises(NotFound):
            await luna.chat({**BODY, "model": "none"})
        with pytest.raises(InvalidRequest) as caught:
            await luna.post("images/generations", {"model": "tiny"})
        assert caught.value.outcome is Outcome.UNSUPPORTED_ENDPOINT


async def test_a_key_that_is_not_one(clock: MockClock) -> None:
    async with served(clock, engine(names=("tiny",))) as server, client(server, "lnx_wrong") as luna:
        with pytest.raises(AuthenticationError):
            await luna.models()
        with pytest.raises(AuthenticationError) as caught:
            async with luna.connect():
                raise AssertionError
        assert caught.value.outcome is Outcome.INVALID_API_KEY


async def test_leaving_a_stream_early_ends_the_request(clock: MockClock) -> None:
    one = ScriptedEngine(Script(parts=(Part(delta("a")),), stuck=True))
    with trio.fail_after(LIMIT_S):
        async with served(clock, one) as server, client(server) as luna:
            async with luna.stream(CHAT, BODY) as events:
                assert (await anext(events)).text == "a"
            await one.departed.wait()


async def test_canonical_workloads(clock: MockClock) -> None:
    async with served(clock, engine(names=("tiny",))) as server, client(server) as luna:
        answer = await luna.submit(ENVELOPE)
        assert answer.body["state"] == "Succeeded"
        assert answer.usage is not None
        assert answer.usage.output_tokens == 8
        assert answer.workload_id
        async with luna.stream_workload(ENVELOPE) as events:
            names = [event.name async for event in events]
        assert names[0] == "accepted"
        assert names[-1] == "completed"
        assert set(names[1:-1]) == {"output"}
        assert events.usage == answer.usage
        assert (await luna.workload(answer.workload_id))["state"] == "Succeeded"
        assert (await luna.cancel(answer.workload_id))["state"] == "Succeeded"
        listed = [one["workload_id"] async for one in luna.workloads(limit=1)]
        assert len(listed) == 2
        assert listed[-1] == answer.workload_id
        assert (await luna.capabilities())["contract"] == "lunanexa.v1"
        with pytest.raises(NotFound):
            await luna.workload("wl_none")
        with pytest.raises(InvalidRequest, match="capability") as caught:
            await luna.submit({**ENVELOPE, "capability": "Dream"})
        assert caught.value.param == "capability"


async def test_a_key_that_was_used_for_another_body(clock: MockClock) -> None:
    async with served(clock, engine(names=("tiny",))) as server, client(server) as luna:
        await luna.submit(ENVELOPE, idempotency_key="once")
        with pytest.raises(Conflict) as caught:
            await luna.submit({**ENVELOPE, "payload": {**PAYLOAD, "max_tokens": 9}}, idempotency_key="once")
        assert caught.value.outcome is Outcome.IDEMPOTENCY_MISMATCH


async def test_an_answer_that_is_given_again_says_so(clock: MockClock) -> None:
    kept = {**ENVELOPE, "data_policy": {"retention": {"kind": "RetainFor", "ms": 60_000}}, "idempotency_key": "kept"}
    async with served(clock, engine(names=("tiny",))) as server, client(server) as luna:
        first, again = await luna.submit(kept), await luna.submit(kept)
        assert (first.replayed, again.replayed) == (False, True)
        assert (again.workload_id, again.body["output"]) == (first.workload_id, first.body["output"])
        streamed = {**kept, "idempotency_key": "streamed"}
        for replayed in (False, True):
            async with luna.connect() as connection:
                workload = await connection.submit(streamed)
                await workload.accepted()
                assert workload.replayed is replayed
                assert (await workload.result())["state"] == "Succeeded"
            async with luna.stream_workload({**kept, "idempotency_key": "events"}) as events:
                assert events.head.replayed is replayed
                assert [event.name async for event in events][-1] == "completed"


async def test_an_answer_that_was_not_kept_has_a_receipt(clock: MockClock) -> None:
    async with served(clock, engine(names=("tiny",))) as server, client(server) as luna:
        first = await luna.submit(ENVELOPE, idempotency_key="once")
        with pytest.raises(Conflict) as caught:
            await luna.submit(ENVELOPE, idempotency_key="once")
        assert caught.value.receipt is not None
        place = first.body["receipt"]
        assert caught.value.receipt.workload_id == first.workload_id
        assert (caught.value.receipt.sequence, caught.value.receipt.hash) == (place["sequence"], place["hash"])
        assert caught.value.receipt.state == "Succeeded"


async def test_a_workload_whose_engine_fails(clock: MockClock) -> None:
    cut = Script(parts=(Part(delta("a")),), whole=False)
    async with served(clock, ScriptedEngine(cut)) as server, client(server) as luna:
        with pytest.raises(EngineFailed) as caught:
            async with luna.stream_workload(ENVELOPE) as events:
                assert [event.name async for event in events] == []
        assert caught.value.workload_id == events.head.workload_id
        receipt = caught.value.receipt
        assert receipt is not None
        assert (receipt.workload_id, receipt.state) == (events.head.workload_id, "Failed")
        assert receipt.sequence


async def test_websocket_workloads(clock: MockClock) -> None:
    served_one = served(clock, engine(names=("tiny",)))
    async with served_one as server, client(server) as luna, luna.connect() as connection:
        chat = await connection.submit({**BODY, "stream": True}, endpoint=CHAT)
        canonical = await connection.submit(ENVELOPE)
        first, second = [text_of(chunk) async for chunk in chat], [text_of(chunk) async for chunk in canonical]
        assert "".join(first) == "".join(second) != ""
        assert (await canonical.result())["state"] == "Succeeded"
        wrong = await connection.submit({"model": "none", "messages": []}, endpoint=CHAT)
        with pytest.raises(NotFound):
            await wrong.result()


async def test_cancelling_a_websocket_workload(clock: MockClock) -> None:
    one = ScriptedEngine(Script(parts=(Part(delta("a")),), stuck=True))
    with trio.fail_after(LIMIT_S):
        async with served(clock, one) as server, client(server) as luna, luna.connect() as connection:
            workload = await connection.submit({**BODY, "stream": True}, endpoint=CHAT)
            assert (await anext(workload))["choices"][0]["delta"]["content"] == "a"
            receipt = await workload.cancel()
            assert receipt is not None
            await one.departed.wait()
            with pytest.raises(WorkloadCancelled):
                await workload.result()


class Cable:
    """Carries connections to a server, until it is cut."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._streams: list[trio.SocketStream] = []
        self.connections = 0

    async def run(self, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, self._carry, 0)
            task_status.started(("127.0.0.1", listeners[0].socket.getsockname()[1]))

    def cut(self) -> None:
        for stream in self._streams:
            stream.socket.close()
        self._streams.clear()

    async def _carry(self, near: trio.SocketStream) -> None:
        far = await trio.open_tcp_stream(*self._address)
        self.connections += 1
        self._streams += [near, far]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pump, near, far)
            nursery.start_soon(_pump, far, near)


async def _pump(source: trio.SocketStream, drain: trio.SocketStream) -> None:
    try:
        async for data in source:
            await drain.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    source.socket.close()
    drain.socket.close()


async def test_a_resumable_workload_survives_a_cut_cable(clock: MockClock) -> None:
    words = [f"word {number} " for number in range(16)]
    parts = [Part(delta(word), wait_s=0.1) for word in words]
    spoken = Script(parts=(*parts, Part(delta("", "stop") + USAGE + DONE)))
    with trio.fail_after(LIMIT_S):
        async with served(clock, ScriptedEngine(spoken)) as server, trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: server.edge.stream.run(task_status=task_status))
            cable = Cable(server.address)
            host, port = await nursery.start(cable.run)
            heard = []
            async with AsyncClient(f"http://{host}:{port}", SECRET).connect() as connection:
                workload = await connection.submit({**BODY, "stream": True}, endpoint=CHAT, resumable=True)
                async for piece in workload:
                    heard.append(text_of(piece))
                    if len(heard) in (4, 9):
                        cable.cut()
                response = await workload.result()
            assert "".join(heard) == "".join(words)
            assert response["state"] == "Succeeded"
            assert cable.connections == 3
            nursery.cancel_scope.cancel()
