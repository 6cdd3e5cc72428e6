"""Canonical workloads over the whole edge: documents, events, refusals, one's own and others'."""

import json
from typing import Any

import attrs
import jsonschema_rs
import pytest
import trio
from trio.testing import MockClock

from lunanexa_core.contract.catalog import contract_schemas
from lunanexa_core.ids import KeyId
from lunanexa_core.keys import secret_digest
from tests.adapters.asgi_driver import Client
from tests.adapters.edge import JSON, KEY, edge
from tests.apps.gateway_fleet import Part, Script, ScriptedEngine
from tests.core.builders import api_key

SCHEMAS = {name: jsonschema_rs.validator_for(schema) for name, schema in contract_schemas().items()}
ENVELOPE: dict[str, Any] = {
    "capability": "TextGenerate",
    "model": "tiny",
    "payload": {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 4},
}
OTHER = "lnx_" + "o" * 10 + "0123456789abcdefghijklmnopqrstuvw"
OTHER_KEY = (b"authorization", b"Bearer " + OTHER.encode())


def post(envelope: object = ENVELOPE, path: str = "/v1/workloads", headers: Any = (KEY, JSON)) -> Client:
    return Client("POST", path, json.dumps(envelope).encode(), headers)


def get(path: str, *, query: bytes = b"", key: Any = KEY) -> Client:
    return Client("GET", path, headers=[key], query=query)


def events(client: Client) -> list[tuple[str, Any]]:
    found = []
    for frame in client.body.decode().split("\n\n"):
        if frame and not frame.startswith(":"):
            name, data = frame.split("\n", 1)
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


async def test_a_workload_is_answered_with_its_response_and_is_there_afterwards(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        client = await post({**ENVELOPE, "workload_id": "order-17"}).call(one.root)
        assert (client.status, client.headers["x-lunanexa-workload-id"]) == (200, "order-17")
        response = client.json()
        SCHEMAS["workload-response"].validate(response)
        assert (response["state"], response["output"]["object"]) == ("Succeeded", "chat.completion")
        shown = (await get("/v1/workloads/order-17").call(one.root)).json()
        SCHEMAS["workload"].validate(shown)
        assert shown["receipt"] == response["receipt"]
        assert shown["usage"] == response["usage"]
        cancelled = await Client("POST", "/v1/workloads/order-17:cancel", headers=[KEY]).call(one.root)
        assert (cancelled.status, cancelled.json()) == (200, shown)


async def test_a_streamed_workload(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        client = await post(path="/v1/workloads:stream").call(one.root)
        assert client.headers["content-type"] == "text/event-stream"
        told = events(client)
        assert [name for name, _ in told] == ["accepted", *["output"] * (len(told) - 2), "completed"]
        assert told[0][1] == {"workload_id": client.headers["x-lunanexa-workload-id"], "queue_position": 0}
        SCHEMAS["workload-response"].validate(told[-1][1])
        assert told[-1][1]["output"] is None
        whole = (await post().call(one.root)).json()["output"]["choices"][0]["message"]["content"]
        assert whole == "".join(
            data["choices"][0]["delta"].get("content") or "" for name, data in told if name == "output"
        )


async def test_a_stream_that_breaks_ends_as_failed_with_its_response(autojump_clock: MockClock) -> None:
    begun = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    async with edge(autojump_clock, ScriptedEngine(Script(parts=(Part(begun),)))) as one:
        name, response = events(await post(path="/v1/workloads:stream").call(one.root))[-1]
        assert (name, response["state"], response["error"]["code"]) == ("failed", "Failed", "engine_failed")
        assert response["receipt"] is not None
        # Its silences are bridged.
    silent = ScriptedEngine(Script(parts=(Part(begun, wait_s=20),)))
    async with edge(autojump_clock, silent) as one:
        client = await post(path="/v1/workloads:stream").call(one.root)
        assert b"\n\n: keepalive\n\n" in client.body


@pytest.mark.parametrize(
    ("client", "status", "code", "param"),
    [
        (post([]), 400, "invalid_request", None),
        (post({**ENVELOPE, "priority": "Urgent"}), 400, "invalid_request", "priority"),
        (post({**ENVELOPE, "capability": "ModelTrain"}), 400, "unsupported_endpoint", "capability"),
        (post({**ENVELOPE, "model": "none"}), 404, "model_not_found", "model"),
        (post({**ENVELOPE, "tenant": "other"}), 403, "permission_denied", "tenant"),
        (post({**ENVELOPE, "model": "none"}, "/v1/workloads:stream"), 404, "model_not_found", "model"),
        (post(headers=(JSON,)), 401, "invalid_api_key", None),
        (post(headers=(KEY, (b"content-type", b"text/plain"))), 400, "invalid_request", "content-type"),
        (get("/v1/workloads/none"), 404, "not_found", "workload_id"),
        (get("/v1/workloads/a b"), 404, "not_found", None),
        (get("/v1/workloads/"), 404, "not_found", None),
        (get("/v1/workloads/a/b"), 404, "not_found", None),
        (get("/v1/workloads", query=b"limit=0"), 400, "invalid_request", "limit"),
        (get("/v1/workloads", query=b"limit=501"), 400, "invalid_request", "limit"),
        (get("/v1/workloads", query=b"limit=%C2%B2"), 400, "invalid_request", "limit"),
        (get("/v1/workloads", query=b"cursor=x"), 400, "invalid_request", "cursor"),
        (get("/v1/workloads", key=(b"x-api-key", b"lnx_unknown")), 401, "invalid_api_key", None),
        (get("/v1/capabilities", key=(b"x-api-key", b"lnx_unknown")), 401, "invalid_api_key", None),
        (Client("POST", "/v1/workloads/none:cancel", headers=[KEY]), 404, "not_found", "workload_id"),
        (Client("POST", "/v1/workloads/none:cancel"), 401, "invalid_api_key", None),
        (get("/v1/workloads/none:cancel"), 405, "method_not_allowed", None),
        (get("/v1/workloads:stream"), 405, "method_not_allowed", None),
        (Client("DELETE", "/v1/workloads", headers=[KEY]), 405, "method_not_allowed", None),
        (Client("DELETE", "/v1/workloads/none", headers=[KEY]), 405, "method_not_allowed", None),
        (Client("POST", "/v1/capabilities", headers=[KEY]), 405, "method_not_allowed", None),
    ],
)
async def test_what_is_refused(
    client: Client, status: int, code: str, param: str | None, autojump_clock: MockClock
) -> None:
    async with edge(autojump_clock) as one:
        await client.call(one.root)
        error = client.error()
        assert (client.status, error["code"], error["param"]) == (status, code, param)
        assert not one.world.receipts()


async def test_the_engines_refusal_comes_with_the_response(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        client = await post({**ENVELOPE, "payload": {"messages": [], "temperature": 99}}).call(one.root)
        assert (client.status, client.headers["x-should-retry"]) == (400, "false")
        response = client.json()
        SCHEMAS["workload-response"].validate(response)
        assert (response["state"], response["error"]["code"]) == ("Failed", "invalid_request")
        assert client.headers["content-length"] == str(len(client.body))


async def test_pages_of_own_workloads(autojump_clock: MockClock) -> None:
    other = api_key(key=KeyId("key_other"), digest=secret_digest(OTHER))
    async with edge(autojump_clock, keys=(other,)) as one:
        for number in range(5):
            assert (await post({**ENVELOPE, "workload_id": f"w-{number}"}).call(one.root)).status == 200
        assert (await post(headers=(OTHER_KEY, JSON)).call(one.root)).status == 200
        found, query = [], b"limit=2"
        while True:
            page = (await get("/v1/workloads", query=query).call(one.root)).json()
            SCHEMAS["workload-page"].validate(page)
            found += [workload["workload_id"] for workload in page["data"]]
            if page["next_cursor"] is None:
                break
            query = b"limit=2&cursor=" + page["next_cursor"].encode()
        assert found == [f"w-{number}" for number in reversed(range(5))]
        hidden = await get("/v1/workloads/w-1", key=OTHER_KEY).call(one.root)
        assert (hidden.status, hidden.error()["code"]) == (404, "not_found")


async def test_a_running_workload_is_shown_and_cancelled(autojump_clock: MockClock) -> None:
    begun = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    slow = ScriptedEngine(Script(parts=(Part(begun), Part(begun, wait_s=500))))
    async with edge(autojump_clock, slow) as one, trio.open_nursery() as nursery:
        streamed = post({**ENVELOPE, "workload_id": "long"}, "/v1/workloads:stream")
        nursery.start_soon(streamed.call, one.root)
        await streamed.until_sent(3)
        shown = (await get("/v1/workloads/long").call(one.root)).json()
        SCHEMAS["workload"].validate(shown)
        assert (shown["state"], shown["receipt"]) == ("Streaming", None)
        cancelled = await Client("POST", "/v1/workloads/long:cancel", headers=[KEY]).call(one.root)
        assert cancelled.json()["state"] == "Cancelled"
        assert cancelled.json()["receipt"] is not None
        with trio.fail_after(5):
            while not streamed.complete:
                await trio.sleep(0.01)
        name, response = events(streamed)[-1]
        assert (name, response["state"]) == ("failed", "Cancelled")
        assert response["receipt"] == cancelled.json()["receipt"]
        assert one.world.at_rest()


async def test_what_this_key_may_ask_for(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        document = (await get("/v1/capabilities").call(one.root)).json()
        SCHEMAS["capabilities"].validate(document)
        served = {entry["capability"]: entry["dialects"] for entry in document["capabilities"]}
        assert {"dialect": "chat/completions", "models": ["tiny"]} in served["TextGenerate"]
        assert served["ModelTrain"] == []


async def test_limits_of_a_key_are_told(autojump_clock: MockClock) -> None:
    limited = attrs.evolve(api_key(key=KeyId("key_other"), digest=secret_digest(OTHER)), requests_per_minute=1)
    async with edge(autojump_clock, keys=(limited,)) as one:
        admitted = await post(headers=(OTHER_KEY, JSON)).call(one.root)
        assert (admitted.status, admitted.headers["x-ratelimit-remaining-requests"]) == (200, "0")
        refused = await post(headers=(OTHER_KEY, JSON)).call(one.root)
        assert (refused.status, refused.error()["code"]) == (429, "rate_limited")
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
