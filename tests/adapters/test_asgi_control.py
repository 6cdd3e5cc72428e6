"""The operator plane over HTTP: routes, their forms, and one shape of errors."""

import json
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from lunanexa_apps.codec import structure
from lunanexa_core.commands import CreateKey, ShowDocument
from lunanexa_core.contract.recovery import RecoveryDocument, RecoveryEnded
from lunanexa_core.events import KeyCreated
from lunanexa_core.ids import KeyId
from lunanexa_core.keys import Role, secret_digest
from tests.adapters.asgi_driver import Client
from tests.adapters.edge import KEY, OPERATOR_KEY, edge
from tests.core.builders import api_key, heartbeat, report, reported

DEPLOYMENTS = "/admin/v1/deployments"
RECOVERY = "/admin/v1/recovery"
MONITOR = "lno_" + "m" * 10 + "0123456789abcdefghijklmnopqrst"
MONITOR_KEY = (b"authorization", b"Bearer " + MONITOR.encode())


def ask(method: str, path: str, body: Any = None, headers: Any = (OPERATOR_KEY,), query: bytes = b"") -> Client:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return Client(method, path, data, headers, query=query)


async def test_an_operator_sees_and_changes_things(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        status = await ask("GET", "/admin/v1/status").call(one.root)
        assert status.status == 200
        assert status.headers["cache-control"] == "no-store"
        assert status.headers["x-request-id"].startswith("req_")
        listed = await ask("GET", DEPLOYMENTS).call(one.root)
        (deployment,) = listed.json()["data"]
        spec = deployment["spec"]
        changed = await ask("PUT", f"{DEPLOYMENTS}/d1", spec | {"replicas": 2}).call(one.root)
        assert changed.json() == {"deployment": "d1", "generation": 2}
        fence = [OPERATOR_KEY, (b"if-match", b'"1"')]
        stale = await ask("PUT", f"{DEPLOYMENTS}/d1", spec, fence).call(one.root)
        assert (stale.status, stale.error()["code"]) == (409, "stale_generation")
        receipts = await ask("GET", "/admin/v1/receipts", query=b"limit=5").call(one.root)
        assert receipts.json() == {"data": [], "next_cursor": None}
        removed = await ask("DELETE", f"{DEPLOYMENTS}/d1").call(one.root)
        assert removed.status == 200
        drained = await ask("POST", "/admin/v1/drain").call(one.root)
        assert drained.json() == {"draining": True, "in_flight": 0}


async def test_a_recovery_is_seen_and_ended(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        nothing = structure(RecoveryDocument, (await ask("GET", RECOVERY).call(one.root)).json(), closed=True)
        assert not nothing.recovering
        stale = await ask("POST", f"{RECOVERY}:rebase", {"plan": "ab"}).call(one.root)
        assert (stale.status, stale.error()["code"]) == (409, "stale_generation")
        ahead = attrs.evolve(heartbeat(9, report()), epoch=7)
        await one.world.kernel.ask(ShowDocument(node=ahead.node, epoch=7, generation=0), "node")
        await one.world.kernel.ask(reported(ahead), "node")
        ready = await ask("GET", "/ready", headers=()).call(one.root)
        assert (ready.status, ready.json()["blockers"]) == (503, ["recovering"])
        status = (await ask("GET", "/admin/v1/status").call(one.root)).json()
        assert [reason["cause"] for reason in status["recovering"]] == ["node_ahead"]
        refused = await Client("GET", "/v1/models", headers=[KEY]).call(one.root)
        assert (refused.status, refused.error()["code"]) == (503, "starting")
        assert "retry-after" in refused.headers
        found = structure(RecoveryDocument, (await ask("GET", RECOVERY).call(one.root)).json(), closed=True)
        assert found.plan is not None
        ended = await ask("POST", f"{RECOVERY}:rebase", {"plan": found.plan.digest}).call(one.root)
        assert ended.status == 200
        assert structure(RecoveryEnded, ended.json(), closed=True).epoch == 8
        assert (await Client("GET", "/v1/models", headers=[KEY]).call(one.root)).status == 200


@pytest.mark.parametrize(
    ("client", "status", "code"),
    [
        (lambda: ask("GET", "/admin/v1/status", headers=()), 401, "invalid_api_key"),
        (lambda: ask("GET", "/admin/v1/status", headers=[KEY]), 403, "permission_denied"),
        (lambda: ask("GET", "/admin/v1/status", headers=[(b"authorization", b"Bearer \xff")]), 400, "invalid_request"),
        (lambda: ask("GET", "/admin/v1/nothing"), 404, "not_found"),
        (lambda: ask("GET", "/admin/v1"), 404, "not_found"),
        (lambda: ask("GET", "/admin/v1/status/"), 404, "not_found"),
        (lambda: ask("GET", "/static/x"), 404, "not_found"),
        (lambda: ask("POST", "/admin/v1/status"), 405, "method_not_allowed"),
        (lambda: ask("OPTIONS", "/admin/v1/status"), 405, "method_not_allowed"),
        (lambda: ask("PUT", f"{DEPLOYMENTS}/d1", b"{"), 400, "invalid_request"),
        (lambda: ask("PUT", f"{DEPLOYMENTS}/d1", b"[]"), 400, "invalid_request"),
        (lambda: ask("PUT", f"{DEPLOYMENTS}/d1", b'{"a":1.5}'), 400, "invalid_request"),
        (lambda: ask("PUT", f"{DEPLOYMENTS}/d 1", {}), 400, "invalid_request"),
        (lambda: ask("PUT", f"{DEPLOYMENTS}/d1", b" " * 1_048_577), 413, "payload_too_large"),
        (
            lambda: ask("PUT", f"{DEPLOYMENTS}/d1", {}, [OPERATOR_KEY, (b"content-length", b"9999999")]),
            413,
            "payload_too_large",
        ),
        (lambda: ask("PUT", f"{DEPLOYMENTS}/d1", {}, [OPERATOR_KEY, (b"if-match", b"*")]), 400, "invalid_request"),
        (lambda: ask("DELETE", f"{DEPLOYMENTS}/d1", None, [OPERATOR_KEY, (b"if-match", b"1")]), 400, "invalid_request"),
        (lambda: ask("GET", "/admin/v1/receipts", query=b"limit=x"), 400, "invalid_request"),
        (lambda: ask("GET", "/admin/v1/receipts", query=b"limit=-1"), 400, "invalid_request"),
        (lambda: ask("GET", "/admin/v1/receipts", query=b"limit=501"), 400, "invalid_request"),
        (lambda: ask("GET", "/admin/v1/receipts", query=b"cursor=-1"), 400, "invalid_request"),
        (lambda: ask("GET", "/admin/v1/receipts", query=b"tenant=a%20b"), 400, "invalid_request"),
        (lambda: ask("GET", "/admin/v1/receipts", query=b"after_wall_ms=1.5"), 400, "invalid_request"),
        (lambda: ask("GET", "/admin/v1/journal", query=b"limit=0"), 400, "invalid_request"),
        (lambda: ask("GET", "/admin/v1/journal", query=b"order=up"), 400, "invalid_request"),
        (lambda: ask("GET", "/admin/v1/journal", query=b"chain=x"), 400, "invalid_request"),
        (lambda: ask("GET", "/admin/v1/journal", query=b"actor="), 400, "invalid_request"),
        (lambda: ask("GET", "/admin/v1/journal/rows/x"), 400, "invalid_request"),
        (lambda: ask("GET", "/admin/v1/journal/rows/0"), 404, "not_found"),
        (lambda: ask("GET", "/admin/v1/journal/rows/9999"), 404, "not_found"),
        (lambda: ask("GET", "/admin/v1/journal", headers=[MONITOR_KEY]), 403, "permission_denied"),
        (lambda: ask("GET", "/admin/v1/journal/rows/1", headers=[MONITOR_KEY]), 403, "permission_denied"),
        (lambda: ask("GET", "/admin/v1/journal/head", headers=[MONITOR_KEY]), 403, "permission_denied"),
        (lambda: ask("GET", "/admin/v1/journal/state", headers=[MONITOR_KEY]), 403, "permission_denied"),
    ],
)
async def test_what_is_refused(client: Any, status: int, code: str, autojump_clock: MockClock) -> None:
    monitor = api_key(key=KeyId("key_m"), digest=secret_digest(MONITOR), roles=frozenset({Role.MONITOR}))
    async with edge(autojump_clock, keys=(monitor,)) as one:
        told = await client().call(one.root)
        assert (told.status, told.error()["code"]) == (status, code)
        assert ("allow" in told.headers) == (status == 405)
        assert "set-cookie" not in told.headers


@pytest.mark.parametrize(("method", "path"), [("PUT", f"{DEPLOYMENTS}/d1"), ("POST", "/admin/v1/keys")])
@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ((), 401, "invalid_api_key"),
        ([(b"authorization", b"Bearer lno_stranger")], 401, "invalid_api_key"),
        ([KEY], 403, "permission_denied"),
    ],
)
async def test_a_strangers_body_is_not_waited_for(
    autojump_clock: MockClock, method: str, path: str, headers: Any, status: int, code: str
) -> None:
    """He is answered by his head alone; what he sends after that is dropped, and no more of it taken than lets
    him see the answer."""
    async with edge(autojump_clock) as one, trio.open_nursery() as nursery:
        client = Client(method, path, [], [*headers, (b"content-length", b"1000000")], stuck=True)
        nursery.start_soon(client.call, one.root)
        await client.until_sent(2)
        assert (client.read_bytes, client.status, client.error()["code"]) == (0, status, code)
        assert client.headers["connection"] == "close"
        flood = [b" " * 10_000] * 1_000
        unread = await Client(method, path, flood, headers).call(one.root)
        assert unread.status == status
        assert unread.read_bytes < 5_000_000


async def test_who_may_only_look_on_is_told_so_after_his_body(autojump_clock: MockClock) -> None:
    """What a role may do is the use case's to say; the door only keeps strangers out."""
    monitor = "lno_" + "m" * 10 + "0123456789abcdefghijklmnopqrst"
    async with edge(autojump_clock) as one:
        key = api_key(key=KeyId("key_m"), digest=secret_digest(monitor), roles=frozenset({Role.MONITOR}))
        assert isinstance(await one.world.kernel.ask(CreateKey(key), "test"), KeyCreated)
        headers = [(b"authorization", b"Bearer " + monitor.encode())]
        assert (await ask("GET", "/admin/v1/status", headers=headers).call(one.root)).status == 200
        refused = await ask("PUT", f"{DEPLOYMENTS}/d1", {}, headers).call(one.root)
        assert (refused.status, refused.error()["code"]) == (403, "permission_denied")
