"""Hostile nodes, and whoever takes himself for one: nothing of theirs is believed beyond what is theirs."""

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from lunanexa_apps.codec import decode, encode
from lunanexa_apps.controller.enrolment import BAD_SIGNATURE
from lunanexa_apps.controller.status import status_document
from lunanexa_core.commands import ApplyDeployment, Reconcile, RevokeNode, SetDirective, Tick
from lunanexa_core.events import Liveness
from lunanexa_core.identity import checks
from lunanexa_core.identity.certificate import VALID_MS
from lunanexa_core.identity.names import Identity, Party
from lunanexa_core.identity.trust import first_trust
from lunanexa_core.ids import AssignmentId, ClusterId, NodeId
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.routing.reach import Reach, reach
from lunanexa_core.routing.routable import NotRoutable, routable_replicas, why_not_routable
from lunanexa_core.southbound.documents import DesiredState, Directive, SignedDocument
from lunanexa_ports.signing import Signer
from tests.apps.node_party import NodeParty
from tests.apps.node_plane import Plane, node_plane
from tests.core.builders import ASSIGNMENT, DEPLOYMENT, POLICY, report, spec

OTHER = NodeId("node-2")


async def beat(one: Plane, node: NodeParty, *args: Any, **changes: Any) -> bytes | Refusal:
    return await one.plane.heartbeat(node.name, node.peer, node.beat(*args, **changes))


def stale(answer: bytes | Refusal) -> bool:
    return isinstance(answer, Refusal) and answer.outcome is Outcome.STALE_GENERATION


async def test_a_node_speaks_for_itself_alone(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node, other = await one.enrolled("node-1"), await one.enrolled("node-2")
        # The right certificate, of another node: in the path, in the document, and in the signature.
        assert await one.plane.heartbeat(OTHER, node.peer, other.beat()) == checks.OTHER_CERTIFICATE
        assert await one.plane.desired(OTHER, node.peer, (0, 0), 0) == checks.OTHER_CERTIFICATE
        assert await one.plane.heartbeat(node.name, node.peer, other.beat(node=node.name)) == BAD_SIGNATURE
        named = await one.plane.heartbeat(node.name, node.peer, node.beat(node=OTHER))
        assert isinstance(named, Refusal)
        assert named.outcome is Outcome.PERMISSION_DENIED
        assert one.kernel.observed.nodes == {}


@pytest.mark.parametrize("party", [Party.CONTROLLER, Party.GATEWAY])
async def test_no_other_party_is_taken_for_a_node(party: Party, autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node = await one.enrolled("node-1")
        assert node.peer is not None
        cluster = one.kernel.state.cluster
        assert cluster is not None
        for uri in (Identity(cluster, party, node.name).uri, Identity(ClusterId("x"), Party.NODE, node.name).uri):
            shown = attrs.evolve(node.peer, identity=uri)
            assert await one.plane.heartbeat(node.name, shown, node.beat()) == checks.OTHER_CERTIFICATE


async def test_what_is_expired_revoked_or_missing_is_not_heard(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node = await one.enrolled("node-1")
        assert isinstance(await beat(one, node), bytes)
        assert await one.plane.heartbeat(node.name, None, node.beat()) == checks.NO_CERTIFICATE
        await one.kernel.ask(RevokeNode(node=node.name, reason="stolen"), "operator")
        assert await beat(one, node) == checks.REVOKED
        assert await one.plane.desired(node.name, node.peer, (0, 0), 0) == checks.REVOKED
        other = await one.enrolled("node-2")
        await one.sleeps(86_400)
        assert await beat(one, other) == checks.EXPIRED


async def test_heartbeats_come_once_and_in_order_and_of_the_newest_boot(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node = await one.enrolled("node-1")
        first, second, third = node.beat(), node.beat(), node.beat()
        for document, taken in ((first, True), (first, False), (third, True), (second, False), (third, False)):
            answer = await one.plane.heartbeat(node.name, node.peer, document)
            assert isinstance(answer, bytes) is taken
            assert stale(answer) is not taken
        late = node.beat()
        assert isinstance(await beat(one, node, boot="boot_2"), bytes)
        assert stale(await one.plane.heartbeat(node.name, node.peer, late)), "of a superseded boot"
        assert isinstance(await beat(one, node, boot="boot_2"), bytes)


@pytest.mark.parametrize(
    "forge",
    [
        lambda document, _: attrs.evolve(document, signature=b""),
        lambda document, _: attrs.evolve(document, signature=document.signature[:-1] + b"\0"),
        lambda document, _: attrs.evolve(document, payload=document.payload.replace(b'"sequence":1', b'"sequence":9')),
        lambda document, other: attrs.evolve(other.sign(document.payload), key_id=document.key_id),
        lambda document, other: other.sign(document.payload),
    ],
)
async def test_a_forged_signature_is_not_read(forge: Any, autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node, other = await one.enrolled("node-1"), await one.enrolled("node-2")
        forged: SignedDocument = forge(node.beat(), other.signer)
        assert await one.plane.heartbeat(node.name, node.peer, forged) == BAD_SIGNATURE
        assert one.kernel.observed.nodes == {}


async def test_a_node_says_nothing_of_where_it_is_reached(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node = await one.enrolled("node-1")
        await beat(one, node)
        await one.kernel.ask(ApplyDeployment(spec=spec()), "operator")
        await one.kernel.ask(Reconcile((ASSIGNMENT,)), "test")
        ready = report()
        state = one.kernel.state
        for host, reached in (("127.0.0.1", Reach(host="127.0.0.1", port=9_000)), ("169.254.169.254", None)):
            await beat(one, node, attrs.evolve(ready, host=host))
            state = one.kernel.state
            assert reach(state, state.replicas[ASSIGNMENT]) == reached
        kernel = one.kernel
        told = state.replicas[ASSIGNMENT]
        assert why_not_routable(state, kernel.observed, kernel.policy, told, kernel.now()) is NotRoutable.UNREACHABLE
        assert routable_replicas(state, kernel.observed, kernel.policy, DEPLOYMENT, kernel.now()) == []


async def test_a_node_speaks_of_no_replica_of_another(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node, other = await one.enrolled("node-1"), await one.enrolled("node-2")
        await beat(one, node)
        await one.kernel.ask(ApplyDeployment(spec=spec()), "operator")
        await one.kernel.ask(Reconcile((ASSIGNMENT,)), "test")
        await beat(one, node, report())
        await beat(one, other, report(port=6_666), report(assignment=AssignmentId("asg_other"), port=6_667))
        assert one.kernel.state.replicas[ASSIGNMENT].port == 9_000
        assert one.kernel.state.replica_node[ASSIGNMENT] == node.name


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"available_mib": 200, "total_mib": 100}, "available_mib"),
        ({"available_mib": -1}, "available_mib"),
        ({"trust_version": -1}, "trust_version"),
        ({"certificate": "f" * 5_000}, "certificate"),
        ({"sequence": 0}, "sequence"),
    ],
)
async def test_a_node_has_no_more_than_it_has(changes: dict[str, int], param: str, autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node = await one.enrolled("node-1")
        answer = await beat(one, node, **changes)
        assert isinstance(answer, Refusal)
        assert (answer.outcome, answer.param) == (Outcome.INVALID_REQUEST, param)
        assert one.kernel.observed.nodes == {}


async def test_a_node_that_is_revoked_while_it_waits_is_told_nothing_more(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node, other = await one.enrolled("node-1"), await one.enrolled("node-2")
        await beat(one, node)
        answers: list[object] = []

        async def wait(party: NodeParty) -> None:
            state = one.kernel.state
            after = (state.epoch, state.nodes[party.name].generation)
            answers.append(await one.plane.desired(party.name, party.peer, after, 60_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, node)
            nursery.start_soon(wait, other)
            await wait_all_tasks_blocked()
            await one.kernel.ask(RevokeNode(node=node.name), "operator")
        assert checks.REVOKED in answers
        (document,) = [one for one in answers if isinstance(one, SignedDocument)]
        assert node.peer is not None
        assert node.peer.serial.encode() in document.payload, "the others are told whom not to believe"
        assert one.kernel.state.nodes[node.name].liveness is Liveness.LOST


async def test_a_certificate_that_expires_while_its_node_waits_is_told_nothing_more(
    autojump_clock: MockClock,
) -> None:
    async with node_plane(autojump_clock) as one:
        node = await one.enrolled("node-1")
        state = one.kernel.state
        after = (state.epoch, state.nodes[node.name].generation)
        answers: list[object] = []

        async def wait() -> None:
            answers.append(await one.plane.desired(node.name, node.peer, after, 60_000))

        async with trio.open_nursery() as nursery:
            await one.sleeps(VALID_MS / 1_000 - 30)
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            assert answers == []
            await trio.sleep(31)
            directed = SetDirective(node=node.name, directive=Directive.CORDON)
            await one.kernel.ask(directed, "operator")
        assert answers == [checks.EXPIRED]


async def test_a_retired_node_is_told_so(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node = await one.enrolled("node-1")
        await beat(one, node)
        await one.kernel.ask(SetDirective(node=node.name, directive=Directive.RETIRE), "operator")
        await one.kernel.ask(Reconcile(()), "test")
        answer = await beat(one, node)
        assert isinstance(answer, Refusal)
        assert answer.outcome is Outcome.NODE_RETIRED


def wanted(answer: bytes | Refusal) -> bool:
    return isinstance(answer, Refusal) and answer.outcome is Outcome.DOCUMENT_WANTED


def alerts(one: Plane) -> list[Any]:
    return [alert["code"] for alert in status_document(one.kernel, "1")["alerts"]]  # type: ignore[call-overload,index,union-attr]  # a JSON value


def recovering(one: Plane) -> bool:
    return one.kernel.state.recovery is not None


async def given(one: Plane, node: NodeParty) -> SignedDocument:
    document = await one.plane.desired(node.name, node.peer, (0, 0), 0)
    assert isinstance(document, SignedDocument)
    return document


def of_order(document: SignedDocument, signer: Signer, /, **changes: Any) -> SignedDocument:
    return signer.sign(encode(attrs.evolve(decode(DesiredState, document.payload), **changes)))


async def test_a_node_that_says_to_be_ahead_must_show_a_document_of_the_cluster(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node, other = await one.enrolled("node-1"), await one.enrolled("node-2")
        own, signer = await given(one, node), next(iter(one.fleet_keys.signers().values()))
        assert wanted(await beat(one, node, epoch=7, generation=5))
        forged = of_order(own, node.signer, epoch=7, generation=5)
        for document in (
            forged,
            attrs.evolve(forged, key_id=own.key_id),
            attrs.evolve(own, payload=forged.payload),
            await given(one, other),
            of_order(own, signer, epoch=7, generation=5, cluster=ClusterId("another")),
        ):
            assert wanted(await one.plane.show(node.name, node.peer, document))
            assert wanted(await beat(one, node, epoch=7, generation=5))
        lost = of_order(own, signer, epoch=7, generation=5)
        assert await one.plane.show(node.name, None, lost) == checks.NO_CERTIFICATE
        assert await one.plane.show(node.name, other.peer, lost) == checks.OTHER_CERTIFICATE
        assert isinstance(await one.plane.show(node.name, node.peer, own), bytes), (
            "no harm is done by one that is known"
        )
        assert wanted(await beat(one, node, epoch=7, generation=5))
        assert alerts(one) == ["documents_not_shown"], "who must look is told"
        assert one.metrics.value("lunanexa_node_findings_total", {"finding": "document_wanted"}) == 7
        assert not recovering(one)
        assert isinstance(await one.plane.show(node.name, node.peer, lost), bytes)
        assert wanted(await beat(one, node, epoch=7, generation=6)), "above what it showed"
        assert not recovering(one)
        assert isinstance(await beat(one, node, epoch=7, generation=5), bytes)
        assert recovering(one)
        assert one.kernel.observed.claiming == set()


async def test_who_is_gone_alerts_nobody(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node, other = await one.enrolled("node-1"), await one.enrolled("node-2")
        readings = one.kernel.observed.nodes
        await beat(one, node, skew_ms=60_000, skew_error_ms=1)
        readings[node.name] = attrs.evolve(readings[node.name], withheld=True)
        assert wanted(await beat(one, other, epoch=7, generation=5))
        assert alerts(one) == ["clock_skew", "documents_not_shown", "reports_withheld"]
        while one.kernel.state.nodes[node.name].liveness is not Liveness.LOST:
            await trio.sleep(0.5)
            await one.kernel.ask(Tick(), "test")
        assert alerts(one) == ["documents_not_shown"]
        await one.kernel.ask(SetDirective(node=other.name, directive=Directive.RETIRE), "operator")
        await one.kernel.ask(Reconcile(()), "test")
        assert alerts(one) == []


async def test_a_key_that_was_made_since_proves_and_one_that_was_dropped_does_not(autojump_clock: MockClock) -> None:
    """A store that was set back to before a rotation does not know the key, of which the controller has the file."""
    async with node_plane(autojump_clock) as one:
        node = await one.enrolled("node-1")
        own, old = await given(one, node), next(iter(one.fleet_keys.signers().values()))
        _, made = one.fleet_keys.make()
        newer = one.fleet_keys.signers()[made.key_id]
        lost = of_order(own, newer, epoch=7, generation=5)
        assert isinstance(await one.plane.show(node.name, node.peer, lost), bytes)
        trust = one.kernel.state.trust
        assert trust is not None
        one.kernel.state.trust = first_trust(trust.authorities[0], made, trust.version + 2)
        assert isinstance(await one.plane.show(node.name, node.peer, lost), bytes)
        assert wanted(await one.plane.show(node.name, node.peer, of_order(own, old, epoch=8, generation=5)))
        one.kernel.state.trust = trust


@pytest.mark.thorough
async def test_who_floods_the_journal_is_answered_and_granted_nothing(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node = await one.enrolled("node-1")
        await beat(one, node)
        await one.kernel.ask(ApplyDeployment(spec=spec()), "operator")
        await one.kernel.ask(Reconcile((ASSIGNMENT,)), "test")
        rows, kernel = one.kernel.head.sequence, one.kernel
        for number in range(POLICY.node_rows_burst + 20):
            assert isinstance(await beat(one, node, report(restarts=number)), bytes)
        assert kernel.head.sequence - rows <= POLICY.node_rows_burst + 2
        told = kernel.state.replicas[ASSIGNMENT]
        assert why_not_routable(kernel.state, kernel.observed, POLICY, told, kernel.now()) is NotRoutable.NODE_WITHHELD
        assert alerts(one) == ["reports_withheld"]
        assert one.metrics.value("lunanexa_node_findings_total", {"finding": "reports_withheld"}) >= 15
        await trio.sleep(1)
        await beat(one, node, told)
        assert why_not_routable(kernel.state, kernel.observed, POLICY, told, kernel.now()) is None
