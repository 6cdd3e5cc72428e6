"""The data plane's routes: what passes, what is refused, and in which shape."""

import json
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import MockClock

from lunanexa_core.openai.stream import KEEPALIVE
from lunanexa_core.workload import WorkloadState
from tests.adapters.asgi_driver import Client
from tests.adapters.edge import JSON, KEY, edge
from tests.apps.gateway_fleet import DONE, Part, Script, ScriptedEngine, delta
from tests.core.builders import SECRET

CHAT_PATH = "/v1/chat/completions"
FORM = b"multipart/form-data; boundary=x"
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Once"}], "max_tokens": 4}
BODY = json.dumps(CHAT).encode()
STREAM = json.dumps(CHAT | {"stream": True}).encode()


def post(body: bytes = BODY, path: str = CHAT_PATH, headers: Any = (KEY, JSON), **options: Any) -> Client:
    return Client("POST", path, body, headers, **options)


async def test_a_chat_is_answered_in_one_message(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        client = await post(headers=(KEY, JSON, (b"x-request-id", b"mine-1"))).call(one.root)
        assert client.status == 200
        assert client.json()["object"] == "chat.completion"
        assert client.headers["x-request-id"] == "mine-1"
        assert client.headers["cache-control"] == "no-store"
        assert client.headers["x-lunanexa-workload-id"].startswith("wl_")
        assert client.headers["content-length"] == str(len(client.body))
        # Head, and the body with the end.
        assert len(client.sent) == 2
        assert one.world.receipt().request == "mine-1"


async def test_a_stream_is_answered_as_it_comes(autojump_clock: MockClock) -> None:
    parts = (Part(delta("a")), Part(delta("b"), wait_s=20), Part(delta("", "stop") + DONE))
    async with edge(autojump_clock, ScriptedEngine(Script(parts=parts))) as one:
        client = await post(STREAM).call(one.root)
        assert client.headers["content-type"] == "text/event-stream"
        assert client.headers["cache-control"] == "no-cache"
        assert client.headers["x-accel-buffering"] == "no"
        told = [message["body"] for message in client.sent[1:]]
        assert told == [delta("a"), KEEPALIVE, delta("b"), delta("", "stop") + DONE, b""]


async def test_sound_is_answered_as_it_is_and_a_form_is_taken(autojump_clock: MockClock) -> None:
    spoken = Script(content_type="audio/wav", parts=(Part(b"RIFF\0\xff"), Part(b"\n\n")))
    heard = Script(content_type="application/json", parts=(Part(b'{"text":"a"}'),))
    async with edge(autojump_clock, ScriptedEngine(spoken, heard)) as one:
        client = await post(b'{"model":"tiny"}', "/v1/audio/speech").call(one.root)
        assert (client.status, client.body) == (200, b"RIFF\0\xff\n\n")
        assert client.headers["content-type"] == "audio/wav"
        body = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\ntiny\r\n--x--\r\n'
        client = await post(body, "/v1/audio/transcriptions", (KEY, (b"content-type", FORM))).call(one.root)
        assert client.json() == {"text": "a"}


async def test_models_are_listed_and_shown(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        listed = (await Client("GET", "/v1/models", headers=[KEY]).call(one.root)).json()
        assert listed["object"] == "list"
        (card,) = listed["data"]
        assert card["id"] == "tiny"
        assert card["object"] == "model"
        assert "chat/completions" in card["meta"]["capabilities"]
        shown = await Client("GET", "/v1/models/tiny", headers=[(b"x-api-key", SECRET.encode())]).call(one.root)
        assert shown.json() == card
        missing = await Client("GET", "/v1/models/org/none", headers=[KEY]).call(one.root)
        assert (missing.status, missing.error()["code"]) == (404, "model_not_found")
        unknown = await Client("GET", "/v1/models").call(one.root)
        assert (unknown.status, unknown.error()["code"]) == (401, "invalid_api_key")
        unknown = await Client("GET", "/v1/models", headers=[(b"authorization", b"Basic x")]).call(one.root)
        assert unknown.status == 401


async def test_probes_need_no_key(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        assert (await Client("GET", "/health").call(one.root)).json() == {"status": "ok"}
        assert (await Client("GET", "/ready").call(one.root)).json() == {"ready": True, "blockers": [], "warnings": []}
        assert (await Client("GET", "/version").call(one.root)).json()["version"] == "0.1.0"
        metrics = await Client("GET", "/metrics").call(one.root)
        assert metrics.headers["content-type"].startswith("text/plain")
        head = await Client("HEAD", "/health").call(one.root)
        assert (head.status, head.body, head.headers["content-length"]) == (200, b"", "15")
        one.world.kernel.observed.draining = True
        ready = await Client("GET", "/ready").call(one.root)
        assert ready.status == 503
        assert ready.json()["blockers"] == ["draining"]
        assert ready.json()["error"]["code"] == "draining"
        assert int(ready.headers["retry-after"]) > 0
        refused = await post().call(one.root)
        assert (refused.status, refused.error()["code"]) == (503, "draining")
        assert refused.headers["retry-after"] == "5"
        assert refused.headers["retry-after-ms"] == "5000"


@pytest.mark.parametrize(
    ("client", "status", "code"),
    [
        (lambda: post(path="/v1/responses/resp_1"), 400, "unsupported_endpoint"),
        (lambda: post(path="/v1/messages/count_tokens"), 400, "unsupported_endpoint"),
        (lambda: post(path="/v1/audio/voices"), 400, "unsupported_endpoint"),
        (lambda: post(path="/v1/images/generations"), 400, "unsupported_endpoint"),
        (lambda: post(path="/v1/audio/transcriptions"), 400, "invalid_request"),
        (lambda: post(b"", path="/v1/audio/transcriptions", headers=[KEY]), 400, "invalid_request"),
        (lambda: post(path="/v1/audio/speech", headers=[KEY, (b"content-type", FORM)]), 400, "invalid_request"),
        (lambda: post(path="/v1/nonsense"), 404, "not_found"),
        (lambda: Client("GET", "/v1/stream", headers=[KEY]), 400, "invalid_request"),
        (lambda: post(path="/v1/chat/completions/"), 404, "not_found"),
        (lambda: post(path="/"), 404, "not_found"),
        (lambda: post(path=""), 404, "not_found"),
        (lambda: post(path="/\ud800"), 404, "not_found"),
        (lambda: Client("GET", CHAT_PATH, headers=[KEY]), 405, "method_not_allowed"),
        (lambda: Client("OPTIONS", CHAT_PATH), 405, "method_not_allowed"),
        (lambda: Client("HEAD", CHAT_PATH), 405, None),
        (lambda: post(path="/health"), 405, "method_not_allowed"),
        (lambda: post(path="/v1/models/tiny"), 405, "method_not_allowed"),
        (lambda: post(headers=[JSON]), 401, "invalid_api_key"),
        (lambda: post(headers=[(b"authorization", b"Bearer " + b"\xff" * 40), JSON]), 400, "invalid_request"),
        (lambda: post(headers=[(b"x-api-key", b"\xe9"), JSON]), 400, "invalid_request"),
        (lambda: post(headers=[KEY, (b"x-lunanexa-priority", b"\xff")]), 400, "invalid_request"),
        (lambda: post(headers=[KEY, (b"content-type", b"text/plain")]), 400, "invalid_request"),
        (lambda: post(headers=[KEY, (b"content-type", b"\xff/\xfe")]), 400, "invalid_request"),
        (lambda: post(headers=[KEY, (b"content-encoding", b"gzip")]), 400, "invalid_request"),
        (lambda: post(headers=[KEY, (b"content-length", b"many")]), 400, "invalid_request"),
        (lambda: post(headers=[KEY, (b"content-length", b"9" * 30)]), 400, "invalid_request"),
        (lambda: post(headers=[KEY, (b"content-length", b"4001")]), 413, "payload_too_large"),
        (lambda: post(b"x" * 4_001), 413, "payload_too_large"),
        (lambda: post(b"", headers=[KEY]), 400, "invalid_request"),
        (lambda: post(b"\xff"), 400, "invalid_request"),
        (lambda: post(b"[" * 3_000), 400, "invalid_request"),
        (lambda: post(json.dumps(CHAT | {"model": "\u0000"}).encode()), 404, "model_not_found"),
        (lambda: post(json.dumps(CHAT | {"model": "none"}).encode()), 404, "model_not_found"),
    ],
)
async def test_what_is_refused(client: Any, status: int, code: str | None, autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        told = await client().call(one.root)
        assert told.status == status
        if code is None:
            assert told.body == b""
        else:
            assert told.error()["code"] == code
        assert ("allow" in told.headers) == (status == 405)
        assert not one.world.receipts()


async def test_a_body_is_not_read_beyond_its_limit(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        parts = [b"x" * 1_000] * 10
        client = Client("POST", CHAT_PATH, parts, [KEY], stuck=True)
        with trio.fail_after(60):
            await client.call(one.root)
        assert client.error()["code"] == "payload_too_large"
        assert "4000" in client.error()["message"]
        # After that the connection closes; what the client still sends is taken for a while, to no purpose.
        assert client.headers["connection"] == "close"


async def test_bodies_of_all_requests_share_one_room(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine(Script(before_s=10, content_type="application/json", parts=(Part(b"{}"),)))
    async with edge(autojump_clock, engine, bodies_bytes_max=len(BODY) + 10) as one, trio.open_nursery() as nursery:
        nursery.start_soon(post().call, one.root)
        await engine.asked.wait()
        refused = post()
        await refused.call(one.root)
        assert (refused.status, refused.error()["code"]) == (503, "no_capacity")
        assert refused.headers["retry-after"] == "5"
        nursery.cancel_scope.cancel()
    async with edge(autojump_clock, bodies_bytes_max=len(BODY) + 10) as one:
        for _ in range(3):
            told = post()
            await told.call(one.root)
            assert told.status == 200
            wrong = post(b"{" * (len(BODY) + 5))
            await wrong.call(one.root)
            assert wrong.status == 400


async def test_a_content_type_may_be_missing_or_have_parameters(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        assert (await post(headers=[KEY]).call(one.root)).status == 200
        typed = post(headers=[KEY, (b"Content-Type", b"Application/JSON; charset=utf-8")])
        assert (await typed.call(one.root)).status == 200
        empty_key = post(headers=[(b"authorization", b"Bearer "), (b"x-api-key", SECRET.encode())])
        assert (await empty_key.call(one.root)).status == 200


async def test_a_request_id_is_echoed_only_when_it_is_one(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        for given_id in (b"", b"with space", b"\xff", b"a" * 257, b"a\x00b"):
            client = await Client("GET", "/health", headers=[(b"x-request-id", given_id)]).call(one.root)
            assert client.headers["x-request-id"].startswith("req_")


async def test_a_client_that_leaves_ends_its_request(autojump_clock: MockClock) -> None:
    for body in (BODY, STREAM):
        scripted = ScriptedEngine(Script(parts=(Part(delta("a")),), stuck=True))
        async with edge(autojump_clock, scripted) as one, trio.open_nursery() as nursery:
            client = post(body)
            nursery.start_soon(client.call, one.root)
            await scripted.asked.wait()
            client.departed.set()
            await scripted.departed.wait()
            with trio.fail_after(60):
                while not one.world.receipts():
                    await trio.sleep(0.1)
            assert one.world.receipt().state is WorkloadState.CANCELLED
            assert one.world.at_rest()


async def test_a_client_that_leaves_before_its_body_is_read_leaves_nothing(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one, trio.open_nursery() as nursery:
        client = post(stuck=True)
        nursery.start_soon(client.call, one.root)
        await trio.testing.wait_all_tasks_blocked()
        client.departed.set()
        await trio.testing.wait_all_tasks_blocked()
        assert not client.sent
        assert not one.world.receipts()


HEADER_NAMES = (
    "host authorization x-api-key content-type content-length content-encoding x-request-id x-lunanexa-deadline-ms "
    "x-lunanexa-priority if-match x-lunanexa-key-id x-lunanexa-signature accept"
)
PATHS = (
    "/v1/models /v1/models/x /v1/chat/completions /v1/completions /v1/embeddings /health /ready /version /metrics "
    "/v1/responses /v1/x /x /admin/v1 /admin/v1/status /admin/v1//status /admin/v1/deployments /admin/v1/drain "
    "/admin/v1/deployments/d1 /admin/v1/receipts /node/v1/node-1/enrol /node/v1/node-1/heartbeat "
    "/node/v1/node-1/desired /node/v1/%ff/desired"
)
BODIES = st.binary(max_size=50) | st.sampled_from([BODY, STREAM, b"{}", b"[]", b'{"model":7}', b"x" * 5_000])


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nothing", "/v1/chat/completions", "/admin/v1/status"])
async def test_a_client_that_leaves_before_a_short_answer_leaves_nothing(path: str, autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        client = Client("GET", path, headers=[KEY])
        client.departed.set()
        with trio.fail_after(60), capture_logs() as logs:
            await client.call(one.root)
        assert not client.sent
        assert not logs


@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "BREW"]),
    path=st.sampled_from(PATHS.split()) | st.text(max_size=20).map(lambda text: "/" + text),
    body=BODIES,
    headers=st.lists(st.tuples(st.sampled_from(HEADER_NAMES.encode().split()), st.binary(max_size=20)), max_size=3),
    key=st.booleans(),
    query=st.binary(max_size=12) | st.sampled_from([b"limit=x", b"after=1.2&wait_ms=5", b"after=%ff"]),
)
def test_nothing_that_comes_in_is_a_500(
    method: str, path: str, body: bytes, headers: list[tuple[bytes, bytes]], key: bool, query: bytes
) -> None:
    clock = MockClock(autojump_threshold=0)

    async def run() -> None:
        async with edge(clock) as one:
            given_headers = [*headers, KEY] if key else headers
            client = Client(method, path, body, given_headers, query=query)
            with trio.fail_after(600):
                await client.call(one.root)
            assert client.complete
            assert client.status != 500
            assert client.headers["x-request-id"]
            # An engine's own refusal passes as it is.
            ours = "x-lunanexa-overhead-ms" not in client.headers
            if client.status >= 400 and method != "HEAD" and ours:
                client.error()

    trio.run(run, clock=clock)


async def test_nothing_of_a_stranger_is_read(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        for headers in ([], [(b"authorization", b"Bearer lnx_nobody")]):
            client = await Client("POST", "/v1/chat/completions", b"no json", headers).call(one.root)
            assert (client.status, client.error()["code"]) == (401, "invalid_api_key")


async def test_a_base_url_without_its_end_is_told(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        missed = await post(path="/chat/completions").call(one.root)
        assert "There is /v1/chat/completions" in missed.error()["message"]
        missed = await post(path="/nonsense").call(one.root)
        assert "/v1" not in missed.error()["message"]
        looked = await Client("GET", "/").call(one.root)
        assert looked.status == 404
        assert "the API is below /v1" in looked.error()["message"]
