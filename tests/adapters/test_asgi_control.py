"""The operator and node planes over HTTP: routes, their forms, and one shape of errors."""

import json
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from lunanexa_apps.codec import decode, encode
from lunanexa_core.commands import CreateKey
from lunanexa_core.events import KeyCreated
from lunanexa_core.ids import BootId, KeyId, StartId
from lunanexa_core.keys import Role, secret_digest
from lunanexa_core.southbound.documents import DesiredState, SignedDocument
from lunanexa_core.southbound.heartbeat import Enrolled, Enrolment, HeartbeatAnswer
from tests.adapters.asgi_driver import Client
from tests.adapters.edge import KEY, OPERATOR_KEY, edge
from tests.apps.gateway_fleet import NEWCOMER, NODE_SECRET
from tests.core.builders import api_key, heartbeat, report

DEPLOYMENTS = "/admin/v1/deployments"
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


@pytest.mark.parametrize(
    ("client", "status", "code"),
    [
        (lambda: ask("GET", "/admin/v1/status", headers=()), 401, "invalid_api_key"),
        (lambda: ask("GET", "/admin/v1/status", headers=[KEY]), 403, "permission_denied"),
        (lambda: ask("GET", "/admin/v1/status", headers=[(b"authorization", b"Bearer \xff")]), 400, "invalid_request"),
        (lambda: ask("GET", "/admin/v1/nothing"), 404, "not_found"),
        (lambda: ask("GET", "/admin/v1"), 404, "not_found"),
        (lambda: ask("GET", "/admin/v1/status/"), 404, "not_found"),
        (lambda: ask("GET", "/node/v1/n/nothing"), 404, "not_found"),
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
        (lambda: ask("GET", "/node/v1/n/desired", query=b"after=x"), 400, "invalid_request"),
        (lambda: ask("GET", "/node/v1/n/desired", query=b"after=1.1&wait_ms=x"), 400, "invalid_request"),
        (lambda: ask("GET", "/node/v1/n o/desired"), 400, "invalid_request"),
        (lambda: ask("POST", "/node/v1/n/enrol", b"{}"), 400, "invalid_request"),
        (
            lambda: ask(
                "POST", "/node/v1/n/enrol", b"{}", [(b"x-lunanexa-key-id", b"k"), (b"x-lunanexa-signature", b"g")]
            ),
            400,
            "invalid_request",
        ),
    ],
)
async def test_what_is_refused(client: Any, status: int, code: str, autojump_clock: MockClock) -> None:
    monitor = api_key(key=KeyId("key_m"), digest=secret_digest(MONITOR), roles=frozenset({Role.MONITOR}))
    async with edge(autojump_clock, keys=(monitor,)) as one:
        told = await client().call(one.root)
        assert (told.status, told.error()["code"]) == (status, code)
        assert ("allow" in told.headers) == (status == 405)
        assert "set-cookie" not in told.headers


def signed(document: SignedDocument, secret: str = NODE_SECRET) -> list[tuple[bytes, bytes]]:
    return [
        (b"authorization", b"Bearer " + secret.encode()),
        (b"x-lunanexa-key-id", document.key_id.encode()),
        (b"x-lunanexa-signature", document.signature.hex().encode()),
    ]


async def test_a_node_enrols_beats_and_is_told_what_to_do(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        word = one.signer.sign(
            encode(Enrolment(node=NEWCOMER, public_key=one.signer.public_key, agent_version="0.1.0"))
        )
        enrol = f"/node/v1/{NEWCOMER}/enrol"
        wrong = await Client("POST", enrol, word.payload, signed(word, "another")).call(one.root)
        assert (wrong.status, wrong.error()["code"]) == (401, "invalid_api_key")
        enrolled = await Client("POST", enrol, word.payload, signed(word)).call(one.root)
        assert enrolled.status == 200
        assert decode(Enrolled, enrolled.body).signing_keys == {one.controller.key_id: one.controller.public_key}
        beat = one.signer.sign(encode(heartbeat(1, node=NEWCOMER, boot=BootId("boot_3"))))
        path = f"/node/v1/{NEWCOMER}/heartbeat"
        answered = await Client("PUT", path, beat.payload, signed(beat)).call(one.root)
        assert decode(HeartbeatAnswer, answered.body).sequence == 1
        again = await Client("PUT", path, beat.payload, signed(beat)).call(one.root)
        assert (again.status, again.error()["code"]) == (409, "stale_generation")
        desired = await Client("GET", f"/node/v1/{NEWCOMER}/desired", headers=signed(beat), query=b"after=0.0").call(
            one.root
        )
        assert decode(DesiredState, desired.body).node == NEWCOMER
        assert desired.headers["x-lunanexa-key-id"] == one.controller.key_id
        document = SignedDocument(
            payload=desired.body,
            key_id=desired.headers["x-lunanexa-key-id"],
            signature=bytes.fromhex(desired.headers["x-lunanexa-signature"]),
        )
        assert document == one.controller.sign(desired.body)
        state = decode(DesiredState, desired.body)
        query = f"after={state.epoch}.{state.generation}&wait_ms=3000".encode()
        began_s = trio.current_time()
        nothing = await Client("GET", f"/node/v1/{NEWCOMER}/desired", headers=signed(beat), query=query).call(one.root)
        assert (nothing.status, nothing.body) == (204, b"")
        assert trio.current_time() - began_s == pytest.approx(3, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sequence": -1}, "sequence"),
        ({"boot": BootId("a boot\n")}, "boot"),
        ({"boot": BootId("b" * 257)}, "boot"),
        ({"epoch": -1}, "epoch"),
        ({"available_mib": -1}, "available_mib"),
        ({"replicas": (report(start=StartId("")),)}, "replicas[0].start"),
        ({"replicas": (report(), report(slots=-1))}, "replicas[1].slots"),
    ],
)
async def test_a_heartbeat_that_no_agent_sends_is_refused_with_its_field(
    changes: dict[str, Any], field: str, autojump_clock: MockClock
) -> None:
    async with edge(autojump_clock) as one:
        word = one.signer.sign(
            encode(Enrolment(node=NEWCOMER, public_key=one.signer.public_key, agent_version="0.1.0"))
        )
        await Client("POST", f"/node/v1/{NEWCOMER}/enrol", word.payload, signed(word)).call(one.root)
        beat = one.signer.sign(encode(attrs.evolve(heartbeat(1, node=NEWCOMER), **changes)))
        refused = await Client("PUT", f"/node/v1/{NEWCOMER}/heartbeat", beat.payload, signed(beat)).call(one.root)
        assert (refused.status, refused.error()["code"], refused.error()["param"]) == (400, "invalid_request", field)


async def test_a_node_that_leaves_its_long_poll_holds_no_task(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one, trio.open_nursery() as nursery:
        headers = [(b"authorization", b"Bearer " + NODE_SECRET.encode())]
        client = Client("GET", "/node/v1/node-1/desired", headers=headers, query=b"after=9.9&wait_ms=60000")
        nursery.start_soon(client.call, one.root)
        await wait_all_tasks_blocked()
        began_s = trio.current_time()
        client.departed.set()
        with trio.fail_after(60):
            while nursery.child_tasks:
                await trio.sleep(0.1)
        assert trio.current_time() - began_s < 1
        assert not client.sent


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
