"""The operator face: its routes over a scripted server, and both faces against the real operator plane."""

import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from lunanexa_client import (
    AsyncClient,
    AsyncOperator,
    AuthenticationError,
    Chain,
    Client,
    Conflict,
    ConnectionFailed,
    InvalidRequest,
    NotFound,
    Operator,
    PageQuery,
    PermissionDenied,
    ProtocolError,
    ReceiptQuery,
)
from lunanexa_core.ids import TenantId
from lunanexa_core.outcomes import Outcome
from lunanexa_ports.http_client import HttpBroken
from tests.adapters.edge import OPERATOR
from tests.adapters.test_bad_clients import Served, served
from tests.apps.engine_driver import engine
from tests.apps.scripted_http import Reply
from tests.client.scripted import answer, headers_of, refused, scripted
from tests.core.builders import SECRET

PAGE: dict[str, Any] = {"data": [], "next_cursor": None, "head": 4}
SPEC = {"alias": "sea", "engine": {"driver": "generic_openai", "served_name": "sea", "url": "http://127.0.0.1:1"}}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Once"}], "max_tokens": 4}
RECEIPTS = ReceiptQuery(limit=5, cursor=9, tenant=TenantId("blue"), after_wall_ms=1, before_wall_ms=2)
ROWS = PageQuery(limit=7, newest_first=False, chain=Chain.LEDGER, action="key.created", target="key_1", actor="kernel")


@pytest.fixture
def clock() -> MockClock:
    """Virtual time, which goes on when no socket has moved for so long."""
    return MockClock(autojump_threshold=0.01)


@pytest.fixture
def still() -> MockClock:
    """The service's time stands still; that of the sync face is its own."""
    return MockClock()


@pytest.mark.parametrize(
    ("call", "method", "target", "document"),
    [
        (lambda o: o.status(), "GET", "/status", {}),
        (lambda o: o.requests(limit=3), "GET", "/requests?limit=3", {}),
        (lambda o: o.explain("wl_1"), "GET", "/requests/wl_1", {}),
        (lambda o: o.explain("../x?y"), "GET", "/requests/..%2Fx%3Fy", {}),
        (
            lambda o: o.receipts_page(RECEIPTS),
            *("GET", "/receipts?limit=5&cursor=9&tenant=blue&after_wall_ms=1&before_wall_ms=2", PAGE),
        ),
        (lambda o: o.api_keys(), "GET", "/keys", PAGE),
        (lambda o: o.api_key("key_1"), "GET", "/keys/key_1", {}),
        (lambda o: o.create_api_key({"name": "farm"}), "POST", "/keys", {}),
        (lambda o: o.revoke_api_key("key_1"), "DELETE", "/keys/key_1", {}),
        (lambda o: o.deployments(), "GET", "/deployments", PAGE),
        (lambda o: o.apply_deployment("sea", SPEC), "PUT", "/deployments/sea", {}),
        (lambda o: o.remove_deployment("sea"), "DELETE", "/deployments/sea", {}),
        (lambda o: o.deployment("sea"), "GET", "/deployments/sea", {}),
        (lambda o: o.plan_deployment(SPEC), "POST", "/deployments:plan", {}),
        (lambda o: o.scale_deployment("sea", 2), "PUT", "/deployments/sea/replicas", {}),
        (lambda o: o.nodes(), "GET", "/nodes?limit=500", PAGE),
        (lambda o: o.nodes_page(limit=2, cursor="spark-1"), "GET", "/nodes?limit=2&cursor=spark-1", PAGE),
        (lambda o: o.node("spark-1"), "GET", "/nodes/spark-1", {}),
        (lambda o: o.set_directive("spark-1", "drain", reason="fan"), "PUT", "/nodes/spark-1/directive", {}),
        (lambda o: o.set_directive("spark-1", "drain", within_ms=9), "PUT", "/nodes/spark-1/directive", {}),
        (lambda o: o.mint_token("spark-1", again=True), "POST", "/nodes/spark-1/token", {}),
        (lambda o: o.revoke_node("spark-1", reason="stolen"), "POST", "/nodes/spark-1/revoke", {}),
        (lambda o: o.set_address("spark-1", "10.0.0.7:9443"), "PUT", "/nodes/spark-1/address", {}),
        (lambda o: o.trust(), "GET", "/trust", {}),
        (lambda o: o.rotate_trust(), "POST", "/trust/rotate", {}),
        (lambda o: o.drain(), "POST", "/drain", {}),
        (lambda o: o.journal_page(PageQuery(limit=2)), "GET", "/journal?limit=2&order=newest", PAGE),
        (
            lambda o: o.journal_page(ROWS),
            "GET",
            "/journal?limit=7&chain=ledger&action=key.created&target=key_1&actor=kernel&order=oldest",
            PAGE,
        ),
        (lambda o: o.journal_row(3), "GET", "/journal/rows/3", {}),
        (lambda o: o.journal_head(), "GET", "/journal/head", {}),
        (lambda o: o.journal_state(), "GET", "/journal/state", {}),
    ],
)
async def test_routes(
    call: Callable[[AsyncOperator], Awaitable[object]], method: str, target: str, document: object
) -> None:
    script = scripted(answer(document))
    await call(script.client.operator)
    (request,) = script.requests
    assert (request.method, request.target) == (method, "/admin/v1" + target)
    assert headers_of(request)["authorization"] == "Bearer lnx_secret"


async def test_a_fence_is_told_beside_the_caller_s_own_headers() -> None:
    script = scripted(answer({}))
    await script.client.operator.apply_deployment("sea", SPEC, generation=0, headers={"x-request-id": "req_mine"})
    (request,) = script.requests
    told = headers_of(request)
    assert (told["if-match"], told["x-request-id"], json.loads(request.body)) == ("0", "req_mine", SPEC)


BROKEN = HttpBroken("the connection ended", head_seen=False)


@pytest.mark.parametrize(
    ("call", "repeated"),
    [
        (lambda o: o.status(), True),
        (lambda o: o.drain(), True),
        (lambda o: o.apply_deployment("sea", SPEC), True),
        (lambda o: o.apply_deployment("sea", SPEC, generation=2), False),
        (lambda o: o.remove_deployment("sea"), False),
        (lambda o: o.create_api_key({}), False),
        (lambda o: o.revoke_api_key("key_1"), False),
        (lambda o: o.mint_token("spark-1"), False),
        (lambda o: o.revoke_node("spark-1"), True),
        (lambda o: o.set_address("spark-1", None), True),
        (lambda o: o.rotate_trust(), False),
    ],
)
async def test_what_is_sent_again_when_the_server_may_have_seen_it(
    call: Callable[[AsyncOperator], Awaitable[object]], repeated: bool, autojump_clock: MockClock
) -> None:
    script = scripted(BROKEN, answer({}))
    if repeated:
        await call(script.client.operator)
    else:
        with pytest.raises(ConnectionFailed):
            await call(script.client.operator)
    assert len(script.requests) == 1 + repeated
    assert (autojump_clock.current_time() > 0) == repeated


async def test_revocation_lists_are_text() -> None:
    told = "-----BEGIN X509 CRL-----\nMIIB\n-----END X509 CRL-----\n"
    script = scripted(Reply(200, [told.encode()]), answer({}))
    assert await script.client.operator.revocation_list() == told
    assert headers_of(script.requests[0])["accept"] == "application/x-pem-file"
    with pytest.raises(ProtocolError, match="no revocation list"):
        await script.client.operator.revocation_list()


async def test_a_refusal_that_passes_is_tried_again(autojump_clock: MockClock) -> None:
    script = scripted(refused(Outcome.STORE_UNAVAILABLE, retry_after="2"), answer({"key": "key_1"}))
    assert await script.client.operator.create_api_key({}) == {"key": "key_1"}
    assert autojump_clock.current_time() == pytest.approx(2)


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"data": {}},
        {"data": [1]},
        {"data": [], "next_cursor": "a"},
        {"data": [], "next_cursor": "9" * 99},
        {"data": [], "next_cursor": "7"},
        {"data": []},
        {"data": [], "head": "4"},
    ],
)
async def test_pages_that_can_not_be_read(document: object) -> None:
    with pytest.raises(ProtocolError):
        await scripted(answer(document)).client.operator.journal_page(PageQuery(limit=1, cursor=7))


def test_both_faces_have_the_same_calls() -> None:
    def calls(face: type[Any]) -> dict[str, list[str]]:
        found = inspect.getmembers(face, inspect.isfunction)
        return {name: list(inspect.signature(one).parameters) for name, one in found if name[0] != "_"}

    assert calls(Operator) == calls(AsyncOperator)


def address(server: Served) -> str:
    host, port = server.address
    return f"http://{host}:{port}"


async def test_the_trio_face_runs_a_service(clock: MockClock) -> None:
    async with served(clock, engine(names=("tiny",))) as server, AsyncClient(address(server), OPERATOR) as luna:
        operator = luna.operator
        made = await operator.create_api_key({"name": "farm", "requests_per_minute": 60})
        async with AsyncClient(address(server), made["secret"]) as farm:
            workloads = [(await farm.chat(CHAT)).workload_id for _ in range(3)]
            with pytest.raises(PermissionDenied):
                await farm.operator.status()
            assert [receipt["key"] async for receipt in operator.receipts(ReceiptQuery(limit=1))] == [made["key"]] * 3
            assert await operator.revoke_api_key(made["key"]) == {"key": made["key"], "revoked": True}
            with pytest.raises(AuthenticationError):
                await farm.models()
        assert (await operator.explain(str(workloads[0])))["ended"]["key"] == made["key"]
        with pytest.raises(NotFound):
            await operator.api_key(made["key"])
        with pytest.raises(InvalidRequest) as caught:
            await operator.create_api_key({"concurrency": -1})
        assert caught.value.param == "concurrency"

        head = await operator.journal_head()
        rows = [row async for row in operator.journal(PageQuery(limit=4, newest_first=False))]
        assert [row["sequence"] for row in rows] == list(range(1, head["sequence"] + 1))
        assert await operator.journal_row(2) == rows[1]
        assert rows[-1]["hash"] in (head["journal"], head["ledger"])
        assert (await operator.journal_state())["sequence"] == head["sequence"]


async def test_deployments_are_fenced(clock: MockClock) -> None:
    async with served(clock, engine(names=("tiny",))) as server, AsyncClient(address(server), OPERATOR) as luna:
        operator = luna.operator
        assert await operator.apply_deployment("sea", SPEC, generation=0) == {"deployment": "sea", "generation": 1}
        with pytest.raises(Conflict) as caught:
            await operator.apply_deployment("sea", SPEC, generation=0)
        assert caught.value.outcome is Outcome.STALE_GENERATION
        assert (await operator.apply_deployment("sea", SPEC))["generation"] == 1
        assert "sea" in [one["spec"]["deployment"] for one in await operator.deployments()]
        await operator.remove_deployment("sea")
        with pytest.raises(NotFound):
            await operator.remove_deployment("sea")


async def test_the_sync_face_runs_a_service(still: MockClock) -> None:
    def talk(url: str) -> None:
        with Client(url, OPERATOR) as luna:
            operator = luna.operator
            assert operator.status()["draining"] is False
            made = operator.create_api_key({"name": "farm"})
            with Client(url, SECRET) as other:
                workload = other.chat(CHAT).workload_id
            assert workload is not None
            assert operator.api_key(made["key"])["name"] == "farm"
            assert made["key"] in [key["key"] for key in operator.api_keys()]
            assert operator.revoke_api_key(made["key"])["revoked"]
            assert [one["workload"] for one in operator.requests(limit=5)["ended"]] == [workload]
            assert operator.explain(workload)["ended"]["state"] == "Succeeded"
            assert [one["workload"] for one in operator.receipts(ReceiptQuery(limit=1))] == [workload]
            assert operator.receipts_page(ReceiptQuery(limit=1, before_wall_ms=1)).items == ()
            assert operator.apply_deployment("sea", SPEC)["generation"] == 1
            assert operator.deployments()[-1]["spec"]["alias"] == "sea"
            assert operator.remove_deployment("sea")["removed"]
            head = operator.journal_head()["sequence"]
            page = operator.journal_page(PageQuery(limit=1))
            assert (page.head, page.next_cursor, page.items[0]["sequence"]) == (head, head, head)
            assert len(list(operator.journal(PageQuery(limit=5)))) == head
            assert operator.journal_row(1)["action"] == "cluster.created"
            assert operator.journal_state()["sequence"] == head
            assert operator.drain() == {"draining": True, "in_flight": 0}

    with trio.fail_after(60):
        async with served(still, engine(names=("tiny",))) as server:
            await trio.to_thread.run_sync(talk, address(server))
