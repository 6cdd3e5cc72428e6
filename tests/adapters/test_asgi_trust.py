"""Who belongs to the fleet, over HTTP."""

from typing import Any

import pytest
from trio.testing import MockClock

from lunanexa_adapters.asgi.trust import PEM
from lunanexa_apps.codec import structure
from lunanexa_core.contract.fleet import NodeDocument
from lunanexa_core.contract.trust import TokenMinted, TrustDocument
from lunanexa_core.identity.token import EnrolmentToken, parse_token
from lunanexa_core.identity.trust import TrustStage
from tests.adapters.edge import JSON, KEY, OPERATOR_KEY, Edge, edge
from tests.adapters.test_asgi_control import ask
from tests.core.builders import NODE

NODES, TRUST = "/admin/v1/nodes", "/admin/v1/trust"


async def told(one: Edge, method: str, path: str, body: Any = None) -> Any:
    answer = await ask(method, path, body, [OPERATOR_KEY, JSON]).call(one.root)
    assert answer.status == 200, answer.body
    return answer.json()


async def test_a_node_is_let_in_reached_and_shut_out(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        minted = structure(TokenMinted, await told(one, "POST", f"{NODES}/spark-9/token", {}), closed=True)
        line = parse_token(minted.line)
        assert isinstance(line, EnrolmentToken)
        trust = structure(TrustDocument, await told(one, "GET", TRUST), closed=True)
        assert (line.node, line.authority) == ("spark-9", trust.authorities[0].fingerprint)
        address = {"data_address": "10.0.0.7:8410"}
        reached = structure(NodeDocument, await told(one, "PUT", f"{NODES}/{NODE}/address", address), closed=True)
        assert reached.data_address == "10.0.0.7:8410"
        out = structure(NodeDocument, await told(one, "POST", f"{NODES}/{NODE}/revoke", {"reason": "fan"}), closed=True)
        assert (out.revoked, out.enrolled) == (True, False)
        assert not any(replica.routable for replica in out.replicas)


async def test_a_rotation_begins_without_a_body_and_lists_are_pem(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        begun = structure(TrustDocument, await told(one, "POST", f"{TRUST}/rotate"), closed=True)
        assert begun.stage is TrustStage.SPREADING
        lists = await ask("GET", f"{TRUST}/crl").call(one.root)
        assert (lists.status, lists.headers["content-type"], lists.headers["cache-control"]) == (200, PEM, "no-store")
        assert lists.body


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", f"{NODES}/{NODE}/token", {}, 409, "again"),
        ("POST", f"{NODES}/{NODE}/token", {"again": "yes"}, 400, "again"),
        ("POST", f"{NODES}/a%20b/token", {}, 400, "node"),
        ("POST", f"{NODES}/none/revoke", {}, 404, "node"),
        ("POST", f"{NODES}/{NODE}/revoke", {"reason": "x" * 300}, 400, "reason"),
        ("PUT", f"{NODES}/{NODE}/address", {"data_address": "10.0.0.7"}, 400, "data_address"),
        ("PUT", f"{NODES}/{NODE}/address", {}, 400, "data_address"),
    ],
)
async def test_what_can_not_be_is_refused(
    autojump_clock: MockClock, method: str, path: str, body: Any, status: int, param: str
) -> None:
    async with edge(autojump_clock) as one:
        answer = await ask(method, path, body, [OPERATOR_KEY, JSON]).call(one.root)
        assert (answer.status, answer.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"{NODES}/{NODE}/token", {"again": True}),
        ("POST", f"{NODES}/{NODE}/revoke", {}),
        ("PUT", f"{NODES}/{NODE}/address", {"data_address": None}),
        ("GET", TRUST, None),
        ("POST", f"{TRUST}/rotate", None),
        ("GET", f"{TRUST}/crl", None),
    ],
)
async def test_who_is_no_operator_sees_and_does_nothing(
    autojump_clock: MockClock, method: str, path: str, body: Any
) -> None:
    async with edge(autojump_clock) as one:
        before = one.world.kernel.head
        for headers, status in (((KEY,), 403), ((), 401)):
            answer = await ask(method, path, body, headers).call(one.root)
            assert answer.status == status
        assert one.world.kernel.head == before
