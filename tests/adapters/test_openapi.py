"""The published document says what is served, and what is served looks as it says."""

import json
import re
from collections.abc import Iterator
from typing import Any

from trio.testing import MockClock

from lunanexa_adapters.asgi.routes import ROUTES
from lunanexa_apps.codec import structure
from lunanexa_core.contract.data_plane import ErrorDocument, Model, ModelList, Ready, Version
from lunanexa_core.contract.journal import HeadDocument, RowDocument, RowPage, StateDocument
from lunanexa_core.contract.operator import DeploymentList, ReceiptList, StatusDocument
from lunanexa_core.outcomes import Outcome
from tests.adapters.asgi_driver import Client
from tests.adapters.edge import JSON, KEY, OPERATOR_KEY, edge

WITHOUT_CERTIFICATE = ("{node}/enrol", "{node}/challenge", "{node}/renew")
CHAT = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Once"}], "max_tokens": 4}).encode()


def references(value: Any) -> Iterator[str]:
    match value:
        case dict():
            yield from (item for name, item in value.items() if name == "$ref")
            yield from (found for item in value.values() for found in references(item))
        case list():
            yield from (found for item in value for found in references(item))
        case _:
            return


async def test_routes_served_and_routes_documented_are_the_same(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        controlled = {
            (method.lower(), re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule))
            for rule in one.control.quart.url_map.iter_rules()
            for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        }
        documented = {(route.method, route.path) for route in ROUTES}
        assert len(documented) == len(ROUTES)
        assert {entry for entry in documented if entry[1].startswith("/admin/")} == controlled
        assert {entry for entry in documented if entry[1].startswith("/node/")} == one.node_plane.routes
        assert {path for _, path in documented - controlled - one.node_plane.routes} == one.data_plane.paths


async def test_the_document_needs_no_key_and_refers_to_what_it_has(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        client = await Client("GET", "/openapi.json").call(one.root)
        assert (client.status, client.headers["content-type"]) == (200, "application/json")
        document = client.json()
        assert document["openapi"] == "3.1.0"
        assert document["info"]["version"] == "0.1.0"
        assert set(document["paths"]) == {route.path for route in ROUTES}
        for reference in set(references(document)):
            found = document
            for step in reference.removeprefix("#/").split("/"):
                found = found[step]
        operations = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
        assert len(operations) == len(set(operations))
        head = await Client("HEAD", "/openapi.json").call(one.root)
        assert (head.body, head.headers["content-length"]) == (b"", str(len(client.body)))


async def test_what_is_asked_of_a_key_stands_there(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        document = (await Client("GET", "/openapi.json").call(one.root)).json()
    open_to_nodes = {route.path for route in ROUTES if route.anonymous}
    assert open_to_nodes == {f"/node/v1/{verb}" for verb in ("authorities", *WITHOUT_CERTIFICATE)}
    for path, operations in document["paths"].items():
        secured = [operation["security"] != [] for operation in operations.values()]
        asked = path.startswith(("/v1/", "/admin/", "/node/")) and path not in open_to_nodes
        assert secured == [asked] * len(operations)
        for operation in operations.values():
            told = {status for status in operation["responses"] if status != "4XX"}
            assert {"400", "408", "431", "500", "503"} <= told
            assert ("401" in told) == (asked and not path.startswith("/node/"))


async def test_answers_are_what_the_schemas_say(autojump_clock: MockClock) -> None:
    """Closed: a member more or less on either side is a fault."""
    async with edge(autojump_clock) as one:

        async def get(path: str, *headers: tuple[bytes, bytes]) -> Any:
            return (await Client("GET", path, headers=headers).call(one.root)).json()

        served = await Client("POST", "/v1/chat/completions", CHAT, [KEY, JSON]).call(one.root)
        assert served.status == 200
        status = structure(StatusDocument, await get("/admin/v1/status", OPERATOR_KEY), closed=True)
        assert status.deployments[0].replicas
        assert status.nodes
        assert status.receipts
        receipts = structure(ReceiptList, await get("/admin/v1/receipts", OPERATOR_KEY), closed=True)
        assert [one.workload for one in receipts.data] == [one.workload for one in status.receipts]
        page = structure(RowPage, await get("/admin/v1/journal", OPERATOR_KEY), closed=True)
        assert page.data[0].sequence == page.head
        path = f"/admin/v1/journal/rows/{receipts.data[0].sequence}"
        row = structure(RowDocument, await get(path, OPERATOR_KEY), closed=True)
        assert row.target == receipts.data[0].workload
        head = structure(HeadDocument, await get("/admin/v1/journal/head", OPERATOR_KEY), closed=True)
        state = structure(StateDocument, await get("/admin/v1/journal/state", OPERATOR_KEY), closed=True)
        assert head.sequence == state.sequence == page.head
        deployments = structure(DeploymentList, await get("/admin/v1/deployments", OPERATOR_KEY), closed=True)
        assert deployments.data[0].spec.alias == "tiny"
        models = structure(ModelList, await get("/v1/models", KEY), closed=True)
        assert structure(Model, await get("/v1/models/tiny", KEY), closed=True) == models.data[0]
        assert structure(Ready, await get("/ready"), closed=True).ready
        assert structure(Version, await get("/version"), closed=True).version == "0.1.0"
        error = structure(ErrorDocument, await get("/nothing"), closed=True)
        assert error.error.code is Outcome.NOT_FOUND
