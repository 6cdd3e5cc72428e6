"""Who may enrol, who is shut out, and what all trust, as operators decide it over the kernel."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from lunanexa_apps.codec import structure
from lunanexa_apps.controller.fleet import KernelFleet
from lunanexa_apps.controller.high_water import HighWater
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.operator import KernelOperator
from lunanexa_apps.controller.trust import KernelTrust
from lunanexa_core.commands import RenewCertificate, Tick
from lunanexa_core.contract.fleet import NodeDocument, NodeList
from lunanexa_core.contract.operator import StatusDocument
from lunanexa_core.contract.trust import AwaitedNode, Lack, TokenMinted, TrustDocument
from lunanexa_core.events import Liveness
from lunanexa_core.identity.certificate import VALID_MS, NodeCertificate
from lunanexa_core.identity.token import EnrolmentToken, parse_token
from lunanexa_core.identity.trust import TrustStage
from lunanexa_core.ids import KeyId, NodeId
from lunanexa_core.kernel.decide import Done
from lunanexa_core.keys import Role, secret_digest
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.fleet_keys import SimulatedFleetKeys
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.journal import JournalState, SimulatedJournal
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.signing import SimulatedKeyring
from lunanexa_simulation.workers import SimulatedWorkers
from tests.core.builders import NODE, POLICY, SEAT, SECRET, api_key, begin, heartbeat, joining, reported
from tests.replayed import check_replay

TOKEN, AUDITOR = "an-operators-token", "an-auditors-token"
KEYS = (
    api_key(),
    api_key(key=KeyId("key_operator"), digest=secret_digest(TOKEN), roles=frozenset({Role.OPERATOR})),
    api_key(key=KeyId("key_auditor"), digest=secret_digest(AUDITOR), roles=frozenset({Role.AUDITOR})),
)
NODE_URL = "https://ctl.example:8401"


@attrs.frozen(kw_only=True)
class World:
    kernel: Kernel
    plane: KernelTrust
    keys: SimulatedFleetKeys
    disk: SimulatedDisk

    async def mint(self, node: str, **asked: Any) -> TokenMinted:
        return structure(TokenMinted, _told(await self.plane.mint_token(TOKEN, node, dict(asked))), closed=True)

    async def enrol(self, node: NodeId = NODE) -> None:
        """Takes it in with a certificate of the issuing authority, and has it heard, following the newest trust."""
        assert self.kernel.state.trust is not None
        mint, enrol = joining(node, again=True, certificate=self.certificate(1))
        for command in (mint, enrol):
            assert not isinstance(await self.kernel.ask(command, "test"), Refusal)
        await self.hear(1, self.kernel.state.trust.version, node)

    async def hear(self, sequence: int, trust_version: int | None, node: NodeId = NODE) -> None:
        told = attrs.evolve(
            heartbeat(sequence=sequence, node=node), epoch=self.kernel.epoch, trust_version=trust_version
        )
        assert isinstance(await self.kernel.ask(reported(told), node), Done)

    def certificate(self, number: int) -> NodeCertificate:
        assert self.kernel.state.trust is not None
        return NodeCertificate(
            serial=f"{number:x}",
            issuer=self.kernel.state.trust.issuing.fingerprint,
            not_after_wall_ms=self.kernel.now().wall_ms + VALID_MS,
        )

    async def trust(self) -> TrustDocument:
        return structure(TrustDocument, _told(await self.plane.trust(AUDITOR)), closed=True)

    async def rotate(self) -> TrustDocument:
        return structure(TrustDocument, _told(await self.plane.rotate(TOKEN)), closed=True)

    async def nodes(self) -> NodeList:
        return structure(NodeList, _told(await KernelFleet(self.kernel).nodes(TOKEN, 50, None)), closed=True)

    async def status(self) -> StatusDocument:
        return structure(StatusDocument, _told(await KernelOperator(self.kernel, "0.1.0").status(TOKEN)), closed=True)


def _told(answer: Any) -> Any:
    assert not isinstance(answer, Refusal), answer
    return json.loads(json.dumps(answer))


@asynccontextmanager
async def world(node_url: str | None = NODE_URL) -> AsyncIterator[World]:
    disk, streams, clock = SimulatedDisk(), Streams(3), SimulatedClock()
    keys = SimulatedFleetKeys(SimulatedKeyring(), streams.stream("fleet keys"))
    authority, signing_key = keys.make()
    store = SimulatedJournal(disk.mount())
    kernel = Kernel(store, store, clock, POLICY, SEAT, HighWater(None))
    async with trio.open_nursery() as nursery:
        await nursery.start(kernel.run, begin(keys=KEYS, authority=authority, signing_key=signing_key))
        ids = SimulatedIds(streams.stream("ids"), clock)
        plane = KernelTrust(kernel, ids, keys, SimulatedWorkers(), node_url)
        yield World(kernel=kernel, plane=plane, keys=keys, disk=disk)
        nursery.cancel_scope.cancel("the test is over")
    check_replay(kernel, disk)


async def test_a_token_names_its_node_and_the_authority_and_only_its_digest_is_kept(mock_clock: MockClock) -> None:
    assert mock_clock.current_time() == trio.current_time()
    async with world() as one:
        minted = await one.mint("spark-1")
        assert (minted.node, minted.expires_in_ms, minted.node_url) == ("spark-1", 900_000, NODE_URL)
        line = parse_token(minted.line)
        assert isinstance(line, EnrolmentToken)
        trust = one.kernel.state.trust
        assert trust is not None
        assert (line.node, line.token, line.authority) == ("spark-1", minted.token, trust.issuing.fingerprint)
        assert one.kernel.state.tokens[minted.token].digest == secret_digest(line.secret)
        assert not [row for row in one.disk.state(JournalState).rows if line.secret.encode() in row.record]
        (waiting,) = (await one.nodes()).data
        assert (waiting.node, waiting.enrolled, waiting.token_expires_in_ms) == ("spark-1", False, minted.expires_in_ms)
        shown = structure(NodeDocument, _told(await KernelFleet(one.kernel).node(TOKEN, "spark-1")), closed=True)
        assert (shown.enrolled, shown.token_expires_in_ms, shown.replicas) == (False, minted.expires_in_ms, ())
    async with world(None) as one:
        assert (await one.mint("spark-1")).node_url is None


async def test_a_node_that_is_enrolled_needs_a_token_made_for_that(mock_clock: MockClock) -> None:
    assert mock_clock.current_time() == trio.current_time()
    async with world() as one:
        await one.enrol()
        refused = await one.plane.mint_token(TOKEN, NODE, {})
        assert isinstance(refused, Refusal)
        assert (refused.outcome, refused.param) == (Outcome.STALE_GENERATION, "again")
        minted = await one.mint(NODE, again=True)
        (node,) = (await one.nodes()).data
        assert (node.enrolled, node.token_expires_in_ms) == (True, minted.expires_in_ms)
        assert (node.enrolled_wall_ms, node.trust_version) == (one.kernel.state.nodes[NODE].enrolled_wall_ms, 1)
        assert node.enrolled_wall_ms is not None
        assert node.certificate is not None
        assert (node.certificate.serial, node.certificate.expires_in_ms) == ("1", VALID_MS)


async def test_a_revoked_node_is_out_at_once_and_says_so() -> None:
    async with world() as one:
        await one.enrol()
        told = _told(await one.plane.revoke_node(TOKEN, NODE, {"reason": "stolen"}))
        node = structure(NodeDocument, told, closed=True)
        assert (node.revoked, node.enrolled, node.state.value) == (True, False, "lost")
        assert node.certificate is None
        assert (await one.trust()).revoked == 1
        head = one.kernel.head
        assert _told(await one.plane.revoke_node(TOKEN, NODE, {}))["revoked"]
        assert one.kernel.head == head
        lists = await one.plane.revocation_list(AUDITOR)
        assert isinstance(lists, str)
        assert json.loads(json.loads(lists)["payload"])["serials"] == ["1"]


async def test_an_address_is_an_operators_to_change() -> None:
    async with world() as one:
        await one.enrol()
        found = await one.plane.set_address(TOKEN, NODE, {"data_address": "10.0.0.7:9443"})
        assert structure(NodeDocument, _told(found), closed=True).data_address == "10.0.0.7:9443"
        refused = await one.plane.set_address(TOKEN, NODE, {"data_address": "10.0.0.7"})
        assert isinstance(refused, Refusal)
        assert refused.param == "data_address"
        found = await one.plane.set_address(TOKEN, NODE, {"data_address": None})
        assert structure(NodeDocument, _told(found), closed=True).data_address is None


async def test_a_rotation_names_those_it_waits_for_and_goes_on_as_they_follow() -> None:
    async with world() as one:
        await one.enrol()
        begun = await one.rotate()
        assert (begun.stage, begun.version, len(begun.authorities), len(begun.signing_keys)) == (
            *(TrustStage.SPREADING, 2),
            *(2, 2),
        )
        assert [authority.issuing for authority in begun.authorities] == [True, False]
        assert begun.waiting == (AwaitedNode(node=NODE, state="ready", lacks=Lack.OLD_TRUST),)
        assert (await one.rotate()) == begun  # One is under way.
        assert len(one.keys.authorities()) == len(one.keys.signers()) == 2
        await one.hear(2, 2)
        await one.kernel.ask(Tick(), "test")
        turning = await one.trust()
        assert (turning.stage, [one.issuing for one in turning.authorities]) == (TrustStage.TURNING, [False, True])
        await one.hear(3, 3)
        assert [node.lacks for node in (await one.trust()).waiting] == [Lack.OLD_CERTIFICATE]
        renewed = RenewCertificate(
            node=NODE,
            public_key="aa" * 32,
            certificate=one.certificate(2),
            by_challenge=False,
            agent_version="0.1.0",
        )
        assert isinstance(await one.kernel.ask(renewed, NODE), Done)
        await one.kernel.ask(Tick(), "test")
        over = await one.trust()
        assert (over.stage, over.version, over.waiting) == (TrustStage.STABLE, 4, ())
        assert over.authorities[0].fingerprint == turning.authorities[1].fingerprint


async def test_an_alert_names_whom_a_rotation_waits_for_in_vain(autojump_clock: MockClock) -> None:
    async with world() as one:
        assert autojump_clock.autojump_threshold == 0
        await one.enrol()
        await one.rotate()
        assert not (await one.status()).alerts
        while one.kernel.state.nodes[NODE].liveness is not Liveness.LOST:
            await trio.sleep(1)
            await one.kernel.ask(Tick(), "test")
        (alert,) = (await one.status()).alerts
        assert (alert.code, NODE in alert.message) == ("rotation_waits", True)
        await one.plane.revoke_node(TOKEN, NODE, {})
        assert not (await one.status()).alerts


async def test_a_rotation_turns_to_an_authority_that_was_brought() -> None:
    async with world() as one:
        brought, _ = one.keys.make()
        begun = await one.rotate()
        assert [authority.fingerprint for authority in begun.authorities][1] == brought.fingerprint
        assert set(one.keys.authorities()) == {authority.fingerprint for authority in begun.authorities}
        assert {key.key_id for key in begun.signing_keys} <= set(one.keys.signers())


async def test_of_two_rotations_at_once_one_begins_and_the_keys_of_the_other_are_removed() -> None:
    async with world() as one:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.rotate)
            nursery.start_soon(one.rotate)
        trust = one.kernel.state.trust
        assert trust is not None
        assert trust.stage is TrustStage.SPREADING
        assert set(one.keys.authorities()) == {authority.fingerprint for authority in trust.authorities}
        assert set(one.keys.signers()) == {key.key_id for key in trust.signing_keys}


@pytest.mark.parametrize(
    ("call", "auditor"),
    [
        (lambda plane, token: plane.mint_token(token, NODE, {}), False),
        (lambda plane, token: plane.revoke_node(token, NODE, {}), False),
        (lambda plane, token: plane.set_address(token, NODE, {"data_address": None}), False),
        (lambda plane, token: plane.rotate(token), False),
        (lambda plane, token: plane.trust(token), True),
        (lambda plane, token: plane.revocation_list(token), True),
    ],
)
async def test_who_may_what(call: Any, auditor: bool) -> None:
    async with world() as one:
        before = one.kernel.head
        for token, outcome in ((None, Outcome.INVALID_API_KEY), (SECRET, Outcome.PERMISSION_DENIED)):
            refused = await call(one.plane, token)
            assert isinstance(refused, Refusal)
            assert refused.outcome is outcome
        assert isinstance(await call(one.plane, AUDITOR), Refusal) != auditor
        assert one.kernel.head == before


@pytest.mark.parametrize(
    ("call", "param"),
    [
        (lambda plane: plane.mint_token(TOKEN, NODE, {"again": 1}), "again"),
        (lambda plane: plane.mint_token(TOKEN, NODE, {"agian": True}), "agian"),
        (lambda plane: plane.mint_token(TOKEN, NODE, []), None),
        (lambda plane: plane.revoke_node(TOKEN, NODE, {"reason": 3}), "reason"),
        (lambda plane: plane.set_address(TOKEN, NODE, {}), "data_address"),
    ],
)
async def test_what_is_no_document_of_ours_names_the_field(call: Any, param: str | None) -> None:
    async with world() as one:
        refused = await call(one.plane)
        assert isinstance(refused, Refusal)
        assert (refused.outcome, refused.param) == (Outcome.INVALID_REQUEST, param)


async def test_of_a_node_that_is_not_there_nothing_is_done() -> None:
    async with world() as one:
        for answer in (
            await one.plane.revoke_node(TOKEN, "none", {}),
            await one.plane.set_address(TOKEN, "none", {"data_address": None}),
        ):
            assert isinstance(answer, Refusal)
            assert answer.outcome is Outcome.NOT_FOUND
