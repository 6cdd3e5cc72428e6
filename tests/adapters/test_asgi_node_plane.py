"""The node plane over HTTP: routes, their forms, who is heard there, and one shape of errors."""

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from lunanexa_adapters.asgi.body_room import BodyRoom
from lunanexa_adapters.asgi.node_plane import BODY_BYTES_MAX, STRANGER_BODY_BYTES_MAX
from lunanexa_apps.codec import decode
from lunanexa_core.commands import SetDirective
from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_core.ids import AssignmentId, BootId, NodeId, StartId
from lunanexa_core.nodes.heartbeat import AHEAD_MAX
from lunanexa_core.southbound.documents import DesiredState, Directive, SignedDocument
from lunanexa_core.southbound.enrolment import Authorities, Challenge, Enrolled
from lunanexa_core.southbound.heartbeat import (
    COUNT_MAX,
    TEXT_MAX,
    EngineReadings,
    ExitReason,
    HeartbeatAnswer,
    RefusedAssignment,
)
from tests.adapters.asgi_driver import Client, Pairs
from tests.adapters.edge import Edge, edge
from tests.apps.gateway_fleet import NEWCOMER
from tests.apps.node_party import NodeParty, mint
from tests.core.builders import report

SIGNED = ((b"x-lunanexa-key-id", b"k"), (b"x-lunanexa-signature", b"00"))
ANY = PeerCertificate(identity="lunanexa://cl_1/node/n", serial="77", not_before_s=0, not_after_s=1 << 40)


def signed(document: SignedDocument) -> list[tuple[bytes, bytes]]:
    return [
        (b"x-lunanexa-key-id", document.key_id.encode()),
        (b"x-lunanexa-signature", document.signature.hex().encode()),
    ]


def tell(node: NodeParty, method: str, verb: str, document: SignedDocument) -> Client:
    path = f"/node/v1/{node.name}/{verb}"
    return Client(method, path, document.payload, signed(document), peer=node.peer)


async def let_in(one: Edge) -> NodeParty:
    node = one.newcomer
    token = await mint(one.world.kernel, node.name)
    answer = await tell(node, "POST", "enrol", node.enrolment(token)).call(one.nodes)
    assert answer.status == 200, answer.body
    node.accept(answer.body)
    return node


async def test_a_node_enrols_beats_and_is_told_what_to_do(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        shown = decode(Authorities, (await Client("GET", "/node/v1/authorities").call(one.nodes)).body)
        trust = one.world.kernel.state.trust
        assert trust is not None
        assert shown.certificates == (trust.issuing.certificate,)
        node = await let_in(one)
        answered = await tell(node, "PUT", "heartbeat", node.beat()).call(one.nodes)
        assert decode(HeartbeatAnswer, answered.body).sequence == 1
        node.sequence = 0
        again = await tell(node, "PUT", "heartbeat", node.beat()).call(one.nodes)
        assert (again.status, again.error()["code"]) == (409, "stale_generation")
        desired = await wait(node, b"after=0.0").call(one.nodes)
        state = decode(DesiredState, desired.body)
        assert (state.node, state.trust) == (NEWCOMER, trust)
        assert desired.headers["x-lunanexa-key-id"] == trust.signing.key_id
        document = SignedDocument(
            payload=desired.body,
            key_id=desired.headers["x-lunanexa-key-id"],
            signature=bytes.fromhex(desired.headers["x-lunanexa-signature"]),
        )
        assert document == one.world.fleet_keys.signers()[trust.signing.key_id].sign(desired.body)
        began_s = trio.current_time()
        nothing = await wait(node, f"after={state.epoch}.{state.generation}&wait_ms=3000".encode()).call(one.nodes)
        assert (nothing.status, nothing.body) == (204, b"")
        assert trio.current_time() - began_s == pytest.approx(3, abs=0.01)


def wait(node: NodeParty, query: bytes, method: str = "GET", headers: Pairs = ()) -> Client:
    return Client(method, f"/node/v1/{node.name}/desired", headers=headers, query=query, peer=node.peer)


async def test_a_certificate_is_renewed_by_itself_or_by_a_challenge(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        node = await let_in(one)
        first = node.peer
        assert first is not None
        await trio.sleep(61)
        renewed = await tell(node, "POST", "renew", node.renewal()).call(one.nodes)
        node.accept(renewed.body)
        assert node.peer is not None
        assert node.peer.serial != first.serial
        await trio.sleep(61)
        path = f"/node/v1/{node.name}"
        without = node.renewal()
        refused = await Client("POST", f"{path}/renew", without.payload, signed(without)).call(one.nodes)
        assert refused.status == 403
        asked = await Client("POST", f"{path}/challenge").call(one.nodes)
        answered = node.renewal(decode(Challenge, asked.body).challenge)
        told = await Client("POST", f"{path}/renew", answered.payload, signed(answered)).call(one.nodes)
        assert decode(Enrolled, told.body).cluster == one.world.kernel.state.cluster


async def test_what_a_header_says_of_a_certificate_is_not_believed(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        node = await let_in(one)
        beat = node.beat()
        assert node.peer is not None
        said = [
            (b"x-forwarded-client-cert", f"URI={node.peer.identity}".encode()),
            (b"ssl-client-cert", b"-----BEGIN CERTIFICATE-----"),
            (b"ssl-client-verify", b"SUCCESS"),
        ]
        path = f"/node/v1/{node.name}/heartbeat"
        refused = await Client("PUT", path, beat.payload, [*signed(beat), *said]).call(one.nodes)
        assert (refused.status, refused.error()["code"]) == (403, "permission_denied")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sequence": -1}, "sequence"),
        ({"boot": BootId("a boot\n")}, "boot"),
        ({"boot": BootId("b" * 257)}, "boot"),
        ({"epoch": -1}, "epoch"),
        ({"available_mib": -1}, "available_mib"),
        ({"available_mib": 9, "total_mib": 8}, "available_mib"),
        ({"trust_version": -1}, "trust_version"),
        ({"total_mib": COUNT_MAX + 1}, "total_mib"),
        ({"agent_version": "v" * (TEXT_MAX + 1)}, "agent_version"),
        ({"epoch": 1 + AHEAD_MAX + 1}, "epoch"),
        ({"refused": (RefusedAssignment(assignment=AssignmentId("a b"), refusal="x"),)}, "refused[0].assignment"),
        ({"replicas": (report(start=StartId("")),)}, "replicas[0].start"),
        ({"replicas": (report(), report(slots=-1))}, "replicas[1].slots"),
        ({"replicas": (report(slots=COUNT_MAX + 1),)}, "replicas[0].slots"),
        ({"replicas": (report(port=65_536),)}, "replicas[0].port"),
        ({"replicas": (report(host="h" * (TEXT_MAX + 1)),)}, "replicas[0].host"),
        ({"replicas": (report(readings=EngineReadings(age_ms=-1)),)}, "replicas[0].readings.age_ms"),
        ({"replicas": (report(exit=ExitReason(kind="x", detail="d" * (TEXT_MAX + 1))),)}, "replicas[0].exit.detail"),
    ],
)
async def test_a_heartbeat_that_no_agent_sends_is_refused_with_its_field(
    changes: dict[str, Any], field: str, autojump_clock: MockClock
) -> None:
    async with edge(autojump_clock) as one:
        node = await let_in(one)
        refused = await tell(node, "PUT", "heartbeat", node.beat(**changes)).call(one.nodes)
        assert (refused.status, refused.error()["code"], refused.error()["param"]) == (400, "invalid_request", field)


async def test_a_node_that_leaves_its_long_poll_holds_no_task(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one, trio.open_nursery() as nursery:
        client = wait(await let_in(one), b"after=9.9&wait_ms=60000")
        nursery.start_soon(client.call, one.nodes)
        await wait_all_tasks_blocked()
        began_s = trio.current_time()
        client.departed.set()
        with trio.fail_after(60):
            while nursery.child_tasks:
                await trio.sleep(0.1)
        assert trio.current_time() - began_s < 1
        assert not client.sent


def ask(method: str, verb: str, body: Any = b"", headers: Pairs = SIGNED, query: bytes = b"") -> Client:
    return Client(method, f"/node/v1/{verb}", body, headers, query=query, peer=ANY)


@pytest.mark.parametrize(
    ("client", "status", "code", "param"),
    [
        (lambda: ask("GET", "n/nothing"), 404, "not_found", None),
        (lambda: ask("GET", "n/desired/"), 404, "not_found", None),
        (lambda: ask("GET", "/desired"), 404, "not_found", None),
        (lambda: ask("GET", ""), 404, "not_found", None),
        (lambda: ask("GET", "authorities/"), 404, "not_found", None),
        (lambda: Client("GET", "/node/v1"), 404, "not_found", None),
        (lambda: Client("GET", "/v1/models"), 404, "not_found", None),
        (lambda: Client("GET", "/admin/v1/status"), 404, "not_found", None),
        (lambda: Client("GET", "/metrics"), 404, "not_found", None),
        (lambda: ask("POST", "n/heartbeat"), 405, "method_not_allowed", None),
        (lambda: ask("POST", "authorities"), 405, "method_not_allowed", None),
        (lambda: ask("GET", "n/challenge"), 405, "method_not_allowed", None),
        (lambda: ask("OPTIONS", "n/enrol"), 405, "method_not_allowed", None),
        (lambda: ask("GET", "n/desired", query=b"after=x"), 400, "invalid_request", "after"),
        (lambda: ask("GET", "n/desired", query=b"after=1.-1"), 400, "invalid_request", "after"),
        (lambda: ask("GET", "n/desired", query=b"after=1.1&wait_ms=x"), 400, "invalid_request", "wait_ms"),
        (lambda: ask("GET", "n/desired", query=b"after=1.1&after=x"), 403, "permission_denied", None),
        (lambda: ask("GET", "n/desired", query=b"after=\xff"), 400, "invalid_request", "path"),
        (lambda: ask("GET", "n o/desired"), 400, "invalid_request", "node"),
        (lambda: ask("PUT", "n/heartbeat", b"{}", [(b"x-lunanexa-key-id", b"\xff")]), 400, "invalid_request", None),
        (lambda: ask("PUT", "n/heartbeat", b"{}", [*SIGNED, (b"x-any", b"a\rb")]), 400, "invalid_request", None),
        (lambda: ask("POST", "n/enrol", b"{}", []), 400, "invalid_request", "x-lunanexa-key-id"),
        (lambda: ask("POST", "n/enrol", b"{}", SIGNED[:1]), 400, "invalid_request", "x-lunanexa-signature"),
        (
            lambda: ask("POST", "n/enrol", b"{}", [*SIGNED[:1], (b"x-lunanexa-signature", b"g")]),
            400,
            "invalid_request",
            "x-lunanexa-signature",
        ),
        (lambda: ask("POST", "n/enrol", b"{}"), 400, "invalid_request", "node"),
        (lambda: ask("PUT", "n/heartbeat", b"{}"), 403, "permission_denied", None),
        (lambda: Client("PUT", "/node/v1/n/heartbeat", b"{}", SIGNED), 403, "permission_denied", None),
        (lambda: Client("GET", "/node/v1/n/desired"), 403, "permission_denied", None),
    ],
)
async def test_what_is_refused(
    client: Any, status: int, code: str, param: str | None, autojump_clock: MockClock
) -> None:
    async with edge(autojump_clock) as one:
        told = await client().call(one.nodes)
        error = told.error()
        assert (told.status, error["code"]) == (status, code)
        assert param in (None, error["param"])
        assert ("allow" in told.headers) == (status == 405)


async def test_the_main_listener_serves_no_node(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        node = await let_in(one)
        for client in (tell(node, "PUT", "heartbeat", node.beat()), Client("GET", "/node/v1/authorities")):
            told = await client.call(one.root)
            assert (told.status, told.error()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("verb", "body", "more"),
    [
        ("heartbeat", b" " * (BODY_BYTES_MAX + 1), ()),
        ("heartbeat", [b" " * 500_000] * 3, ()),
        ("heartbeat", b"", [(b"content-length", b"9999999")]),
        ("enrol", b" " * (STRANGER_BODY_BYTES_MAX + 1), ()),
        ("renew", [b" " * 50_000] * 2, ()),
    ],
)
async def test_a_body_over_the_limit_is_not_read_to_its_end(
    verb: str, body: Any, more: Any, autojump_clock: MockClock
) -> None:
    async with edge(autojump_clock) as one:
        method = "PUT" if verb == "heartbeat" else "POST"
        told = await ask(method, f"n/{verb}", body, [*SIGNED, *more]).call(one.nodes)
        assert (told.status, told.error()["code"]) == (413, "payload_too_large")
        assert told.headers["connection"] == "close"


async def test_what_the_head_refuses_has_no_body_waited_for(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one, trio.open_nursery() as nursery:
        unsigned = Client("PUT", "/node/v1/n/heartbeat", [], [(b"content-length", b"1000")], stuck=True, peer=ANY)
        nursery.start_soon(unsigned.call, one.nodes)
        await unsigned.until_sent(2)
        assert (unsigned.read_bytes, unsigned.status) == (0, 400)
        unsigned.departed.set()


async def test_a_node_that_leaves_within_its_body_is_answered_nothing(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one, trio.open_nursery() as nursery:
        client = Client("PUT", "/node/v1/n/heartbeat", b"{", SIGNED, stuck=True, peer=ANY)
        nursery.start_soon(client.call, one.nodes)
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
            told = await ask("PUT", "n/heartbeat", b" " * BODY_BYTES_MAX).call(one.nodes)
            assert (told.status, told.error()["code"]) == (403, "permission_denied")


async def test_a_party_hands_in_one_document_at_a_time(autojump_clock: MockClock) -> None:
    """By whichever of its certificates: they are so long that it could fill everybody's room."""
    async with edge(autojump_clock) as one, trio.open_nursery() as nursery:

        def document(peer: PeerCertificate, *, stuck: bool = False) -> Client:
            return Client("PUT", "/node/v1/n/document", b"{}", SIGNED, stuck=stuck, peer=peer)

        first, newer = document(ANY, stuck=True), attrs.evolve(ANY, serial="78")
        nursery.start_soon(first.call, one.nodes)
        await wait_all_tasks_blocked()
        told = await document(newer).call(one.nodes)
        assert (told.status, told.error()["code"]) == (503, "no_capacity")
        other = attrs.evolve(ANY, identity="lunanexa://cl_1/node/m")
        assert (await document(other).call(one.nodes)).status == 403
        first.departed.set()
        await wait_all_tasks_blocked()
        assert (await document(newer).call(one.nodes)).status == 403


async def test_a_kernel_that_is_gone_is_a_503(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        token = await mint(one.world.kernel, NEWCOMER)
        one.world.kernel._inbox.close()
        node = one.newcomer
        told = await tell(node, "POST", "enrol", node.enrolment(token)).call(one.nodes)
        assert (told.status, told.error()["code"]) == (503, "store_unavailable")


async def test_the_head_alone_is_answered_alike(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        told = await wait(await let_in(one), b"after=0.0", "HEAD", [(b"x-request-id", b"r-1")]).call(one.nodes)
        assert (told.status, told.body) == (200, b"")
        assert told.headers["x-request-id"] == "r-1"
        assert told.headers["cache-control"] == "no-store"
        assert int(told.headers["content-length"]) > 0


async def test_a_change_of_one_node_ends_the_wait_of_no_other(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one, trio.open_nursery() as nursery:
        kernel, node = one.world.kernel, await let_in(one)
        after = f"{kernel.state.epoch}.{kernel.state.nodes[NEWCOMER].generation}"
        client = wait(node, f"after={after}&wait_ms=60000".encode())
        nursery.start_soon(client.call, one.nodes)
        await wait_all_tasks_blocked()
        began_s = trio.current_time()
        await kernel.ask(SetDirective(node=NodeId("node-1"), directive=Directive.CORDON), "test")
        await trio.sleep(1)
        assert not client.sent
        await kernel.ask(SetDirective(node=NEWCOMER, directive=Directive.CORDON), "test")
        await client.until_sent(2)
        assert decode(DesiredState, client.body).directive is Directive.CORDON
        assert trio.current_time() - began_s < 2


async def test_who_waits_is_told_when_the_controller_ceases_to_lead(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one, trio.open_nursery() as nursery:
        client = wait(await let_in(one), b"after=9.9&wait_ms=60000")
        nursery.start_soon(client.call, one.nodes)
        await wait_all_tasks_blocked()
        one.world.kernel._turn(leading=False)
        await client.until_sent(2)
        assert (client.status, client.error()["code"]) == (503, "not_leader")
        one.world.kernel._turn(leading=True)
