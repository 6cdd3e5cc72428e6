"""Calls over a scripted server: what is sent, what comes back, retries and deadlines on virtual time."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from lunanexa_client import (
    AsyncClient,
    Conflict,
    ConnectionFailed,
    DeadlineExceeded,
    LunaNexaError,
    ProtocolError,
    RateLimited,
    Retries,
    Unavailable,
)
from lunanexa_client.settings import Limits
from lunanexa_core.outcomes import TABLE, Outcome
from lunanexa_ports.http_client import HttpBroken, HttpRequest, HttpResponse, HttpUnreachable
from tests.apps.scripted_http import Reply, ScriptedHttp
from tests.client.scripted import BODY, SETTINGS, answer, headers_of, refused, scripted

COMPLETION = {"choices": [{"message": {"content": "Hello"}}], "usage": {"prompt_tokens": 2, "completion_tokens": 1}}
ENVELOPE = {"capability": "TextGenerate", "model": "tiny", "payload": {"endpoint": "chat/completions", "body": BODY}}
UNREACHABLE = HttpUnreachable("luna:8400: no connection")
BROKEN = HttpBroken("the connection ended", head_seen=False)


async def test_a_chat(autojump_clock: MockClock) -> None:
    script = scripted(answer(COMPLETION, x_request_id="req_1", x_lunanexa_workload_id="wl_1", x_lunanexa_queue_ms="7"))
    got = await script.client.chat(BODY, headers={"X-LunaNexa-Priority": "Critical"})
    assert (got.status, got.text, got.workload_id, got.queue_ms) == (200, "Hello", "wl_1", 7)
    assert got.usage is not None
    assert (got.usage.input_tokens, got.usage.output_tokens) == (2, 1)
    (request,) = script.requests
    assert (request.method, request.host, request.port) == ("POST", "luna", 8400)
    assert request.target == "/v1/chat/completions"
    assert json.loads(request.body) == BODY
    sent = headers_of(request)
    assert sent["authorization"] == "Bearer lnx_secret"
    assert sent["content-type"] == "application/json"
    assert sent["x-lunanexa-priority"] == "Critical"
    assert sent["x-lunanexa-deadline-ms"] == "600000"
    assert "idempotency-key" not in sent
    assert autojump_clock.current_time() == 0


@pytest.mark.parametrize(
    ("call", "method", "target", "document"),
    [
        (lambda c: c.models(), "GET", "/v1/models", {"data": []}),
        (lambda c: c.completions({"prompt": "a"}), "POST", "/v1/completions", {}),
        (lambda c: c.embeddings({"input": "a"}), "POST", "/v1/embeddings", {}),
        (lambda c: c.post("/responses", {}), "POST", "/v1/responses", {}),
        (lambda c: c.submit(ENVELOPE), "POST", "/v1/workloads", {}),
        (lambda c: c.workload("wl_1"), "GET", "/v1/workloads/wl_1", {}),
        (lambda c: c.workload("../x?y"), "GET", "/v1/workloads/..%2Fx%3Fy", {}),
        (lambda c: c.cancel("wl_1"), "POST", "/v1/workloads/wl_1:cancel", {}),
        (lambda c: c.capabilities(), "GET", "/v1/capabilities", {}),
        (lambda c: c.workloads_page(limit=5, cursor="a b"), "GET", "/v1/workloads?limit=5&cursor=a+b", {"data": []}),
    ],
)
async def test_routes(
    call: Callable[[AsyncClient], Awaitable[object]], method: str, target: str, document: object
) -> None:
    script = scripted(answer(document))
    await call(script.client)
    (request,) = script.requests
    assert (request.method, request.target) == (method, target)


async def test_pages_follow_one_another() -> None:
    first = answer({"data": [{"workload_id": "b"}], "next_cursor": "c1"})
    script = scripted(first, answer({"data": [{"workload_id": "a"}], "next_cursor": None}))
    assert [item["workload_id"] async for item in script.client.workloads(limit=1)] == ["b", "a"]
    assert [request.target for request in script.requests] == [
        "/v1/workloads?limit=1",
        "/v1/workloads?limit=1&cursor=c1",
    ]


@pytest.mark.parametrize("outcome", list(Outcome))
async def test_refusals_are_retried_when_the_server_says_so(outcome: Outcome, autojump_clock: MockClock) -> None:
    script = scripted(refused(outcome), answer(COMPLETION))
    if TABLE[outcome].retry:
        assert (await script.client.chat(BODY)).text == "Hello"
        assert len(script.requests) == 2
        assert autojump_clock.current_time() > 0
    else:
        with pytest.raises(LunaNexaError) as caught:
            await script.client.chat(BODY)
        assert caught.value.outcome is outcome
        assert len(script.requests) == 1


async def test_retry_after_is_kept_and_the_server_told_what_is_left(autojump_clock: MockClock) -> None:
    script = scripted(refused(Outcome.QUEUE_FULL, retry_after_ms="1500"), answer(COMPLETION))
    began = autojump_clock.current_time()
    await script.client.chat(BODY, deadline_ms=10_000)
    assert autojump_clock.current_time() - began == pytest.approx(1.5)
    assert [headers_of(request)["x-lunanexa-deadline-ms"] for request in script.requests] == ["10000", "8500"]


async def test_waits_without_retry_after_double(autojump_clock: MockClock) -> None:
    script = scripted(refused(Outcome.ENGINE_FAILED), retries=Retries(max_retries=3, first_ms=100, cap_ms=300))
    began = autojump_clock.current_time()
    with pytest.raises(LunaNexaError) as caught:
        await script.client.chat(BODY)
    assert caught.value.outcome is Outcome.ENGINE_FAILED
    assert autojump_clock.current_time() - began == pytest.approx(0.1 + 0.2 + 0.3)
    assert len(script.requests) == 4


async def test_no_wait_is_begun_that_passes_the_deadline(autojump_clock: MockClock) -> None:
    script = scripted(refused(Outcome.NO_CAPACITY, retry_after="5"))
    began = autojump_clock.current_time()
    with pytest.raises(Unavailable) as caught:
        await script.client.chat(BODY, deadline_ms=4_000)
    assert caught.value.retry_after_s == 5
    assert autojump_clock.current_time() == began
    assert len(script.requests) == 1


async def test_unreachable_is_always_tried_again(autojump_clock: MockClock) -> None:
    script = scripted(UNREACHABLE, answer(COMPLETION))
    assert (await script.client.chat(BODY)).text == "Hello"
    assert autojump_clock.current_time() == pytest.approx(0.25)


async def test_a_broken_connection_is_tried_again_only_where_nothing_runs_twice(autojump_clock: MockClock) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        await scripted(BROKEN, answer(COMPLETION)).client.chat(BODY)
    assert not caught.value.retryable
    assert isinstance(caught.value.__cause__, HttpBroken)
    assert await scripted(BROKEN, answer({"data": []})).client.models() == ()
    with_key = scripted(BROKEN, answer(COMPLETION))
    await with_key.client.chat(BODY, idempotency_key="k1")
    assert [headers_of(request)["idempotency-key"] for request in with_key.requests] == ["k1", "k1"]
    assert autojump_clock.current_time() == pytest.approx(0.5)


async def test_a_workload_has_one_key_over_its_retries(autojump_clock: MockClock) -> None:
    made = scripted(BROKEN, answer({"state": "Succeeded"}))
    await made.client.submit(ENVELOPE)
    assert [headers_of(request)["idempotency-key"] for request in made.requests] == ["idem_1", "idem_1"]
    assert autojump_clock.current_time() == pytest.approx(0.25)
    named = scripted(answer({}))
    await named.client.submit({**ENVELOPE, "idempotency_key": "mine"})
    assert headers_of(named.requests[0])["idempotency-key"] == "mine"
    once = scripted(answer({}), retries=Retries(max_retries=0))
    await once.client.submit(ENVELOPE)
    assert "idempotency-key" not in headers_of(once.requests[0])


async def test_the_deadline_of_an_envelope_is_that_of_its_call(autojump_clock: MockClock) -> None:
    script = scripted(answer({}))
    await script.client.submit({**ENVELOPE, "deadline_ms": 900_000})
    await script.client.submit({**ENVELOPE, "deadline_ms": 900_000}, deadline_ms=5_000)
    await script.client.submit({**ENVELOPE, "deadline_ms": "soon"})
    told = [headers_of(request)["x-lunanexa-deadline-ms"] for request in script.requests]
    assert told == ["900000", "5000", "600000"]
    assert autojump_clock.current_time() == 0


async def test_conflicts_carry_the_receipt() -> None:
    error = {"code": "idempotency_output_gone", "message": "m"}
    with pytest.raises(Conflict) as caught:
        await scripted(answer({"error": error, "receipt": {"sequence": 4}}, 409)).client.submit(ENVELOPE)
    assert caught.value.receipt is not None
    assert caught.value.receipt.sequence == 4


async def test_an_engines_own_refusal_passes() -> None:
    reply = answer({"error": {"message": "too long", "type": "invalid_request_error", "code": "context_length"}}, 400)
    with pytest.raises(LunaNexaError) as caught:
        await scripted(reply).client.chat(BODY)
    assert (caught.value.code, caught.value.outcome, str(caught.value)) == ("context_length", None, "too long")


@pytest.mark.parametrize(
    "reply", [Reply(200, [b"<html>"]), Reply(200, [b""]), Reply(200, [b"\xff"]), Reply(200, [b"[" * 100_000])]
)
async def test_what_is_no_json_is_no_answer(reply: Reply) -> None:
    script = scripted(reply)
    with pytest.raises(ProtocolError, match="no JSON"):
        await script.client.chat(BODY)
    assert len(script.requests) == 1


@pytest.mark.parametrize("reply", [Reply(502, [b"<html>Bad gateway"]), Reply(502, []), Reply(302, [b"[]"])])
async def test_errors_of_what_stands_between_are_not_retried(reply: Reply) -> None:
    script = scripted(reply)
    with pytest.raises(LunaNexaError) as caught:
        await script.client.chat(BODY)
    assert caught.value.status == reply.status
    assert len(script.requests) == 1


async def test_a_longer_answer_than_the_limit() -> None:
    script = scripted(Reply(200, [b" " * 60, b"{}" + b" " * 60]), limits=Limits(answer_bytes=100))
    with pytest.raises(ProtocolError, match="100 bytes"):
        await script.client.chat(BODY)


@pytest.mark.parametrize("body", [{"a": float("nan")}, {"a": {1}}, {"a": "\ud800"}])
async def test_bodies_without_a_json_form(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own words differ
        await scripted(answer({})).client.chat(body)


@pytest.mark.parametrize("options", [{"deadline_ms": 0}, {"headers": {"x": "ä"}}, {"headers": {"x": "a\r\nb"}}])
async def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"deadline_ms|headers"):
        await scripted(answer({})).client.chat(BODY, **options)


class SilentHttp(ScriptedHttp):
    """Its server never answers; ``left`` is set when the exchange was given up."""

    def __init__(self) -> None:
        super().__init__(lambda _: Reply(200))
        self.left = trio.Event()

    @asynccontextmanager
    async def _exchange(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        try:
            await trio.Event().wait()
            yield Reply(200)
        finally:
            self.left.set()


async def test_the_deadline_is_kept_here_too(autojump_clock: MockClock) -> None:
    http = SilentHttp()
    client, began = AsyncClient(settings=SETTINGS, http=http), autojump_clock.current_time()
    with pytest.raises(DeadlineExceeded, match="chat/completions: no end within 1500 ms") as caught:
        await client.chat(BODY, deadline_ms=1_500)
    assert autojump_clock.current_time() - began == pytest.approx(1.5 + SETTINGS.grace_ms / 1000)
    assert (caught.value.outcome, caught.value.status) == (Outcome.DEADLINE_EXCEEDED, None)
    assert http.left.is_set()


async def test_the_servers_own_word_on_the_deadline_comes_first() -> None:
    with pytest.raises(DeadlineExceeded) as caught:
        await scripted(refused(Outcome.DEADLINE_EXCEEDED)).client.chat(BODY)
    assert caught.value.status == 504


async def test_a_given_http_client_is_left_open() -> None:
    script = scripted(refused(Outcome.RATE_LIMITED), retries=Retries(max_retries=0))
    async with script.client as client:
        with pytest.raises(RateLimited):
            await client.chat(BODY)
    assert not script.http.closed


async def test_a_stream_is_not_asked_for_in_the_body_of_a_whole_answer() -> None:
    async with AsyncClient("http://127.0.0.1:1/v1", "key") as client:
        with pytest.raises(ValueError, match=r"^stream: "):
            await client.chat({"model": "tiny", "messages": [], "stream": True})
