"""The node plane over HTTP: routes, their forms, and one shape of errors."""

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from lunanexa_adapters.asgi.body_room import BodyRoom
from lunanexa_adapters.asgi.node_plane import BODY_BYTES_MAX
from lunanexa_apps.codec import decode, encode
from lunanexa_core.commands import SetDirective
from lunanexa_core.ids import BootId, NodeId, StartId
from lunanexa_core.southbound.documents import DesiredState, Directive, SignedDocument
from lunanexa_core.southbound.heartbeat import Enrolled, Enrolment, HeartbeatAnswer
from tests.adapters.asgi_driver import Client, Pairs
from tests.adapters.edge import Edge, edge
from tests.apps.gateway_fleet import NEWCOMER, NODE_SECRET
from tests.core.builders import heartbeat, report

BEARER = (b"authorization", b"Bearer " + NODE_SECRET.encode())
SIGNED = (BEARER, (b"x-lunanexa-key-id", b"k"), (b"x-lunanexa-signature", b"00"))


def signed(document: SignedDocument, secret: str = NODE_SECRET) -> list[tuple[bytes, bytes]]:
    return [
        (b"authorization", b"Bearer " + secret.encode()),
        (b"x-lunanexa-key-id", document.key_id.encode()),
        (b"x-lunanexa-signature", document.signature.hex().encode()),
    ]


def enrolment(one: Edge) -> SignedDocument:
    return one.signer.sign(encode(Enrolment(node=NEWCOMER, public_key=one.signer.public_key, agent_version="0.1.0")))


async def test_a_node_enrols_beats_and_is_told_what_to_do(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        word = enrolment(one)
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
        word = enrolment(one)
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


def ask(method: str, verb: str, body: Any = b"", headers: Pairs = SIGNED, query: bytes = b"") -> Client:
    return Client(method, f"/node/v1/{verb}", body, headers, query=query)


@pytest.mark.parametrize(
    ("client", "status", "code", "param"),
    [
        (lambda: ask("GET", "n/nothing"), 404, "not_found", None),
        (lambda: ask("GET", "n/desired/"), 404, "not_found", None),
        (lambda: ask("GET", "/desired"), 404, "not_found", None),
        (lambda: ask("GET", ""), 404, "not_found", None),
        (lambda: Client("GET", "/node/v1"), 404, "not_found", None),
        (lambda: ask("POST", "n/heartbeat"), 405, "method_not_allowed", None),
        (lambda: ask("OPTIONS", "n/enrol"), 405, "method_not_allowed", None),
        (lambda: ask("GET", "n/desired", query=b"after=x"), 400, "invalid_request", "after"),
        (lambda: ask("GET", "n/desired", query=b"after=1.-1"), 400, "invalid_request", "after"),
        (lambda: ask("GET", "n/desired", query=b"after=1.1&wait_ms=x"), 400, "invalid_request", "wait_ms"),
        (lambda: ask("GET", "n/desired", query=b"after=1.1&after=x"), 401, "invalid_api_key", None),
        (lambda: ask("GET", "n/desired", query=b"after=\xff"), 400, "invalid_request", "path"),
        (lambda: ask("GET", "n o/desired"), 400, "invalid_request", "node"),
        (lambda: ask("PUT", "n/heartbeat", b"{}", [(b"authorization", b"Bearer \xff")]), 400, "invalid_request", None),
        (lambda: ask("PUT", "n/heartbeat", b"{}", [*SIGNED, (b"x-any", b"a\rb")]), 400, "invalid_request", None),
        (lambda: ask("POST", "n/enrol", b"{}", []), 400, "invalid_request", "x-lunanexa-key-id"),
        (lambda: ask("POST", "n/enrol", b"{}", SIGNED[:2]), 400, "invalid_request", "x-lunanexa-signature"),
        (
            lambda: ask("POST", "n/enrol", b"{}", [*SIGNED[:2], (b"x-lunanexa-signature", b"g")]),
            400,
            "invalid_request",
            "x-lunanexa-signature",
        ),
        (lambda: ask("PUT", "n/heartbeat", b"{}"), 401, "invalid_api_key", None),
    ],
)
async def test_what_is_refused(
    client: Any, status: int, code: str, param: str | None, autojump_clock: MockClock
) -> None:
    async with edge(autojump_clock) as one:
        told = await client().call(one.root)
        error = told.error()
        assert (told.status, error["code"]) == (status, code)
        assert param in (None, error["param"])
        assert ("allow" in told.headers) == (status == 405)


@pytest.mark.parametrize(
    ("body", "more"),
    [(b" " * (BODY_BYTES_MAX + 1), ()), ([b" " * 500_000] * 3, ()), (b"", [(b"content-length", b"9999999")])],
)
async def test_a_body_over_the_limit_is_not_read_to_its_end(body: Any, more: Any, autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        told = await ask("PUT", "n/heartbeat", body, [*SIGNED, *more]).call(one.root)
        assert (told.status, told.error()["code"]) == (413, "payload_too_large")
        assert told.headers["connection"] == "close"


async def test_what_the_head_refuses_has_no_body_waited_for(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one, trio.open_nursery() as nursery:
        unsigned = Client("PUT", "/node/v1/n/heartbeat", [], [BEARER, (b"content-length", b"1000")], stuck=True)
        nursery.start_soon(unsigned.call, one.root)
        await unsigned.until_sent(2)
        assert (unsigned.read_bytes, unsigned.status) == (0, 400)
        unsigned.departed.set()


async def test_a_node_that_leaves_within_its_body_is_answered_nothing(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one, trio.open_nursery() as nursery:
        client = Client("PUT", "/node/v1/n/heartbeat", b"{", SIGNED, stuck=True)
        nursery.start_soon(client.call, one.root)
        await wait_all_tasks_blocked()
        client.departed.set()
        with trio.fail_after(60):
            while nursery.child_tasks:
                await trio.sleep(0.1)
        assert not client.sent


async def test_bodies_leave_their_room(autojump_clock: MockClock) -> None:
    """Refused or not, each gives back what it took: more than the room holds passes through it."""
    async with edge(autojump_clock) as one:
        one.node_plane._room = BodyRoom(BODY_BYTES_MAX)
        for _ in range(3):
            told = await ask("PUT", "n/heartbeat", b" " * BODY_BYTES_MAX).call(one.root)
            assert (told.status, told.error()["code"]) == (401, "invalid_api_key")


async def test_a_kernel_that_is_gone_is_a_503(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        word = enrolment(one)
        one.world.kernel._inbox.close()
        told = await Client("POST", f"/node/v1/{NEWCOMER}/enrol", word.payload, signed(word)).call(one.root)
        assert (told.status, told.error()["code"]) == (503, "store_unavailable")


async def test_the_head_alone_is_answered_alike(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        headers = [BEARER, (b"x-request-id", b"r-1")]
        told = await Client("HEAD", "/node/v1/node-1/desired", headers=headers, query=b"after=0.0").call(one.root)
        assert (told.status, told.body) == (200, b"")
        assert told.headers["x-request-id"] == "r-1"
        assert told.headers["cache-control"] == "no-store"
        assert int(told.headers["content-length"]) > 0


async def test_a_change_of_one_node_ends_the_wait_of_no_other(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one, trio.open_nursery() as nursery:
        kernel = one.world.kernel
        clients = {}
        for node in ("node-1", "node-2"):
            after = f"{kernel.state.epoch}.{kernel.state.nodes[NodeId(node)].generation}"
            query = f"after={after}&wait_ms=60000".encode()
            clients[node] = Client("GET", f"/node/v1/{node}/desired", headers=[BEARER], query=query)
            nursery.start_soon(clients[node].call, one.root)
        await wait_all_tasks_blocked()
        began_s = trio.current_time()
        await kernel.ask(SetDirective(node=NodeId("node-1"), directive=Directive.CORDON), "test")
        await clients["node-1"].until_sent(2)
        assert decode(DesiredState, clients["node-1"].body).directive is Directive.CORDON
        assert trio.current_time() - began_s < 1
        await clients["node-2"].until_sent(2)
        assert clients["node-2"].status == 204
        assert trio.current_time() - began_s == pytest.approx(60, abs=1)


async def test_who_waits_is_told_when_the_controller_ceases_to_lead(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one, trio.open_nursery() as nursery:
        client = Client("GET", "/node/v1/node-1/desired", headers=[BEARER], query=b"after=9.9&wait_ms=60000")
        nursery.start_soon(client.call, one.root)
        await wait_all_tasks_blocked()
        one.world.kernel._turn(leading=False)
        await client.until_sent(2)
        assert (client.status, client.error()["code"]) == (503, "not_leader")
        one.world.kernel._turn(leading=True)
