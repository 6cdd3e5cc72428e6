"""Repetitions over the whole edge: what a client sees of an answer that is given again, and of one that is gone."""

import json
from typing import Any

import jsonschema_rs
import pytest
from trio.testing import MockClock

from lunanexa_core.contract.catalog import contract_schemas
from lunanexa_core.workload import DataClass, Priority
from tests.adapters.asgi_driver import Client
from tests.adapters.edge import JSON, KEY, edge
from tests.core.builders import api_key

SCHEMAS = {name: jsonschema_rs.validator_for(schema) for name, schema in contract_schemas().items()}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Once"}], "max_tokens": 4}
ENVELOPE: dict[str, Any] = {
    "capability": "TextGenerate",
    "model": "tiny",
    "idempotency_key": "order-17",
    "payload": {name: value for name, value in CHAT.items() if name != "model"},
}
RETAIN = {"data_policy": {"retention": {"kind": "RetainFor", "ms": 60_000}}}
REPLAYED = "x-lunanexa-replayed"


def post(path: str, body: object, *headers: tuple[bytes, bytes]) -> Client:
    return Client("POST", path, json.dumps(body).encode(), (KEY, JSON, *headers))


@pytest.mark.parametrize("path", ["/v1/workloads", "/v1/workloads:stream"])
async def test_a_canonical_workload_is_answered_again(autojump_clock: MockClock, path: str) -> None:
    async with edge(autojump_clock) as one:
        first = await post(path, ENVELOPE | RETAIN).call(one.root)
        again = await post(path, ENVELOPE | RETAIN).call(one.root)
        assert (again.status, again.body) == (200, first.body)
        assert (first.headers.get(REPLAYED), again.headers[REPLAYED]) == (None, "true")
        assert again.headers["x-lunanexa-workload-id"] == first.headers["x-lunanexa-workload-id"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dialect_is_answered_again(autojump_clock: MockClock, stream: bool) -> None:
    headers = ((b"idempotency-key", b"k"), (b"x-lunanexa-retain-ms", b"60000"))
    async with edge(autojump_clock) as one:
        path, body = "/v1/chat/completions", CHAT | {"stream": stream}
        first = await post(path, body, *headers).call(one.root)
        again = await post(path, body, *headers).call(one.root)
        assert (again.status, again.body, again.headers[REPLAYED]) == (200, first.body, "true")
        assert again.headers["content-type"] == first.headers["content-type"]
        assert again.headers["cache-control"] == first.headers["cache-control"]


async def test_what_is_gone_is_told_with_its_receipt(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        first = await post("/v1/workloads", ENVELOPE).call(one.root)
        gone = await post("/v1/workloads", ENVELOPE).call(one.root)
        SCHEMAS["error"].validate(gone.json())
        error = gone.json()["error"]
        assert (gone.status, error["code"], error["param"]) == (409, "idempotency_output_gone", "idempotency_key")
        assert gone.headers["x-should-retry"] == "false"
        told = first.json()
        assert error["receipt"] == {"workload_id": told["workload_id"], "state": "Succeeded", **told["receipt"]}
        shown = await Client("GET", f"/v1/workloads/{error['receipt']['workload_id']}", headers=[KEY]).call(one.root)
        assert shown.json()["receipt"] == told["receipt"]
        other = await post("/v1/workloads", ENVELOPE | {"priority": "Interactive"}).call(one.root)
        SCHEMAS["error"].validate(other.json())
        assert (other.status, other.json()["error"]["code"]) == (409, "idempotency_mismatch")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"tenant": "another"}, "tenant"),
        ({"priority": "Critical"}, "priority"),
        ({"data_policy": {"classification": "Restricted"}}, "data_policy.classification"),
    ],
)
async def test_what_the_key_may_not_ask_for(autojump_clock: MockClock, asked: dict[str, Any], param: str) -> None:
    key = api_key(priority_max=Priority.NORMAL, data_class_max=DataClass.INTERNAL)
    async with edge(autojump_clock, key=key) as one:
        denied = await post("/v1/workloads", ENVELOPE | asked).call(one.root)
        error = denied.json()["error"]
        assert (denied.status, error["code"], error["param"]) == (403, "permission_denied", param)
        capabilities = (await Client("GET", "/v1/capabilities", headers=[KEY]).call(one.root)).json()
        assert capabilities["priorities"] == ["Background", "Normal"]
        assert capabilities["data_classes"] == ["Public", "Internal"]
        assert (await post("/v1/workloads", ENVELOPE).call(one.root)).status == 200
