"""Nodes come in by a token and stay by renewal; whoever tries it another way is told nothing of use."""

import attrs
import pytest
import trio
from trio.testing import MockClock

from lunanexa_apps.codec import decode
from lunanexa_apps.controller.enrolment import BAD_CHALLENGE, BAD_SIGNATURE, CHALLENGE_MS
from lunanexa_apps.controller.issuing import LACKS_KEYS, LOOK_AGAIN_MS
from lunanexa_apps.controller.kernel import NOT_LEADER
from lunanexa_core.commands import RevokeNode, RotateTrust, Tick
from lunanexa_core.identity import checks
from lunanexa_core.identity.certificate import VALID_MS
from lunanexa_core.identity.enrol import BAD_TOKEN, REPEAT_MS
from lunanexa_core.ids import NodeId
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_core.southbound.enrolment import Enrolled
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.signing import Signer
from lunanexa_simulation.rng import Streams
from tests.apps.node_party import NodeParty, mint
from tests.apps.node_plane import Plane, node_plane

DAY_S = 86_400


def certificate(answer: bytes | Refusal) -> str:
    assert isinstance(answer, bytes), answer
    return decode(Enrolled, answer).certificate


async def rotate(one: Plane) -> None:
    authority, signing_key = one.fleet_keys.make()
    await one.kernel.ask(RotateTrust(authority=authority, signing_key=signing_key), "operator")


async def test_a_node_is_answered_all_that_it_needs(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node, token = one.party("node-1"), await mint(one.kernel, "node-1")
        await trio.sleep(60)
        told = node.accept(await one.plane.enrol(node.name, node.enrolment(token, data_address="10.0.0.1:8500")))
        state = one.kernel.state
        assert (told.cluster, told.epoch, told.trust) == (state.cluster, state.epoch, state.trust)
        assert told.data_address == state.nodes[node.name].data_address == "10.0.0.1:8500"
        assert VALID_MS - 1_000 <= told.valid_ms <= VALID_MS
        assert node.peer is not None
        assert [one.serial for one in state.nodes[node.name].certificates] == [node.peer.serial]


async def test_a_node_that_did_not_hear_the_answer_asks_again_and_nobody_else_does(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node, thief, token = one.party("node-1"), one.party("thief"), await mint(one.kernel, "node-1")
        await one.plane.enrol(node.name, node.enrolment(token))
        stolen = thief.enrolment(token, node=node.name)
        assert await one.plane.enrol(node.name, stolen) == BAD_TOKEN
        await trio.sleep(REPEAT_MS / 1_000)
        node.accept(await one.plane.enrol(node.name, node.enrolment(token)))
        assert len(one.kernel.state.revoked) == 1, "of the answer that was lost"


@pytest.mark.parametrize(
    "changes",
    [
        {"secret": "guessed"},
        {"secret": ""},
        {"token": "tok_node-2_1"},
        {"token": "nothing"},
    ],
)
async def test_a_wrong_token_is_refused_and_not_used_up(changes: dict[str, str], autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node, token = one.party("node-1"), await mint(one.kernel, "node-1")
        await mint(one.kernel, "node-2")
        assert await one.plane.enrol(node.name, node.enrolment(token, **changes)) == BAD_TOKEN
        assert one.kernel.state.nodes == {}
        node.accept(await one.plane.enrol(node.name, node.enrolment(token)))


async def test_an_enrolment_is_of_whom_it_says_and_signed_by_the_key_that_it_brings(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node, other, token = one.party("node-1"), one.party("node-2"), await mint(one.kernel, "node-1")
        forged = node.enrolment(token, public_key=other.signer.public_key)
        assert await one.plane.enrol(node.name, forged) == BAD_SIGNATURE
        tampered = attrs.evolve(node.enrolment(token), payload=other.enrolment(token, node=node.name).payload)
        assert await one.plane.enrol(node.name, tampered) == BAD_SIGNATURE
        elsewhere = await one.plane.enrol(other.name, node.enrolment(token))
        assert isinstance(elsewhere, Refusal)
        assert elsewhere.outcome is Outcome.PERMISSION_DENIED
        for request in ("zz", "00", "00" * 2_000, ""):
            refusal = await one.plane.enrol(node.name, node.enrolment(token, certificate_request=request))
            assert isinstance(refusal, Refusal)
            assert (refusal.outcome, refusal.param) == (Outcome.INVALID_REQUEST, "certificate_request")
        unreadable = await one.plane.enrol(node.name, node.signer.sign(b"{}"))
        assert isinstance(unreadable, Refusal)
        assert one.kernel.state.nodes == {}


async def test_a_token_that_was_minted_again_lets_another_machine_take_the_name(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        first = await one.enrolled("node-1")
        second = NodeParty(one.keyring, Streams(9), one.clock, "node-1")
        second.accept(
            await one.plane.enrol(second.name, second.enrolment(await mint(one.kernel, "node-1", again=True)))
        )
        assert await one.plane.heartbeat(first.name, first.peer, first.beat()) == checks.REVOKED
        assert await one.plane.heartbeat(first.name, second.peer, first.beat()) == BAD_SIGNATURE
        assert isinstance(await one.plane.heartbeat(second.name, second.peer, second.beat(boot="b")), bytes)


async def test_a_certificate_is_renewed_for_who_shows_one_that_is_good(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node = await one.enrolled("node-1")
        old = node.peer
        await one.sleeps(DAY_S / 2)
        node.accept(await one.renew(node, node.renewal()))
        assert node.peer is not None
        assert node.peer != old
        assert isinstance(await one.plane.heartbeat(node.name, old, node.beat()), bytes), "both are good"
        other = await one.enrolled("node-2")
        await one.sleeps(DAY_S / 4)
        assert await one.plane.renew(node.name, other.peer, node.renewal()) == checks.OTHER_CERTIFICATE
        assert await one.plane.renew(node.name, node.peer, other.renewal(node=node.name)) == BAD_SIGNATURE
        assert await one.plane.renew(node.name, None, node.renewal()) == checks.NO_CERTIFICATE
        named = await one.renew(node, node.renewal(node=NodeId("node-2")))
        assert isinstance(named, Refusal)
        assert named.outcome is Outcome.PERMISSION_DENIED


async def test_who_did_not_hear_its_renewal_is_given_the_same_again(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node = await one.enrolled("node-1")
        await one.sleeps(DAY_S / 2)
        lost = await one.renew(node, node.renewal())
        held = one.kernel.state.nodes[node.name].certificates
        assert len(held) == 2
        again = await one.renew(node, node.renewal())
        challenged = await one.plane.renew(node.name, None, node.renewal(await one.challenge("node-1")))
        elsewhere = await one.another_plane().renew(node.name, node.peer, node.renewal())
        await rotate(one)
        spreading = await one.renew(node, node.renewal())
        for answer in (again, challenged, elsewhere, spreading):
            assert certificate(answer) == certificate(lost)
        assert one.kernel.state.nodes[node.name].certificates == held
        node.accept(spreading)
        asked_anew = await one.renew(node, node.renewal())
        assert isinstance(asked_anew, Refusal)
        assert asked_anew.outcome is Outcome.RATE_LIMITED, "that was another request"


@pytest.mark.parametrize("since", ["old", "another authority issues", "enrolled anew"])
async def test_what_was_given_counts_for_as_long_as_it_would(since: str, autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node = await one.enrolled("node-1")
        await one.sleeps(DAY_S / 2)
        lost = await one.renew(node, node.renewal())
        match since:
            case "old":
                await one.sleeps(DAY_S * 0.51)
            case "another authority issues":
                await rotate(one)
                await one.plane.heartbeat(node.name, node.peer, node.beat(trust_version=2))
                await one.kernel.ask(Tick(), "janitor")
            case _:
                token = await mint(one.kernel, "node-1", again=True)
                await one.plane.enrol(node.name, node.enrolment(token))
        answer = await one.plane.renew(node.name, None, node.renewal(await one.challenge("node-1")))
        assert certificate(answer) != certificate(lost)


@pytest.mark.parametrize(("days", "taken"), [(2, True), (29, True), (30.5, True), (31.5, False)])
async def test_a_machine_that_slept_comes_back_by_a_challenge(
    days: float, taken: bool, autojump_clock: MockClock
) -> None:
    """It was certified for a day, and may be late by thirty."""
    async with node_plane(autojump_clock) as one:
        node = await one.enrolled("node-1")
        await one.sleeps(days * DAY_S)
        assert await one.renew(node, node.renewal()) == checks.EXPIRED
        answer = await one.plane.renew(node.name, None, node.renewal(await one.challenge("node-1")))
        assert isinstance(answer, bytes) is taken
        if taken:
            node.accept(answer)
            assert isinstance(await one.plane.heartbeat(node.name, node.peer, node.beat()), bytes)


async def test_a_challenge_is_for_one_node_and_a_minute(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node, other = await one.enrolled("node-1"), await one.enrolled("node-2")
        await one.sleeps(2 * DAY_S)
        given = await one.challenge("node-1")
        wall_ms, _, rest = given.partition(".")
        for bad in (
            await one.challenge("node-2"),
            f"{int(wall_ms) + 1}.{rest}",
            f"{wall_ms}.{rest[:-1]}0" if rest[-1] != "0" else f"{wall_ms}.{rest[:-1]}1",
            f"{wall_ms}.",
            "9" * 40 + f".{rest}",
            "²." + rest,
            "",
            ".",
        ):
            assert await one.plane.renew(node.name, None, node.renewal(bad)) == BAD_CHALLENGE
        assert await one.plane.renew(other.name, None, other.renewal(given)) == BAD_CHALLENGE
        assert await one.plane.renew(node.name, None, other.renewal(given, node=node.name)) == BAD_SIGNATURE
        await trio.sleep(CHALLENGE_MS / 1_000 + 1)
        assert await one.plane.renew(node.name, None, node.renewal(given)) == BAD_CHALLENGE
        await trio.sleep(1)
        node.accept(await one.plane.renew(node.name, None, node.renewal(await one.challenge("node-1"))))


async def test_a_challenge_and_a_renewal_say_nothing_of_whether_there_is_such_a_node(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        await one.enrolled("node-1")
        gone = await one.enrolled("node-2")
        await one.kernel.ask(RevokeNode(node=gone.name), "operator")
        await trio.sleep(61)
        stranger = one.party("x")
        for name in ("node-1", "node-2", "nobody"):
            document = stranger.renewal(await one.challenge(name), node=NodeId(name))
            assert await one.plane.renew(NodeId(name), None, document) == BAD_SIGNATURE
        assert await one.renew(gone, gone.renewal()) == checks.REVOKED, "who shows its certificate is told why"


async def test_a_leader_without_the_newest_keys_sends_nodes_elsewhere_until_it_has_them(
    autojump_clock: MockClock,
) -> None:
    async with node_plane(autojump_clock) as one:
        node = await one.enrolled("node-1")
        complete = one.fleet_keys.signers
        missing: dict[str, Signer] = {}
        one.fleet_keys.signers = lambda: missing  # type: ignore[method-assign]  # a folder without the key
        assert await one.plane.desired(node.name, node.peer, (0, 0), 0) == LACKS_KEYS
        one.fleet_keys.signers = complete  # type: ignore[method-assign]  # as it was
        assert await one.plane.desired(node.name, node.peer, (0, 0), 0) == LACKS_KEYS, "it looks now and then"
        await trio.sleep(LOOK_AGAIN_MS / 1_000)
        assert isinstance(await one.plane.desired(node.name, node.peer, (0, 0), 0), SignedDocument)


async def test_keys_that_can_not_be_reached_are_no_refusal(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node, token = one.party("node-1"), await mint(one.kernel, "node-1")
        one.fleet_keys.unavailable = True
        with pytest.raises(PortUnavailable):
            await one.plane.enrol(node.name, node.enrolment(token))
        one.fleet_keys.unavailable = False
        node.accept(await one.plane.enrol(node.name, node.enrolment(token)))


async def test_a_follower_answers_nobody(autojump_clock: MockClock) -> None:
    async with node_plane(autojump_clock) as one:
        node = await one.enrolled("node-1")
        token = await mint(one.kernel, "node-2")
        one.kernel._turn(leading=False)
        other = one.party("node-2")
        for answer in (
            await one.plane.enrol(other.name, other.enrolment(token)),
            await one.plane.challenge(node.name),
            await one.renew(node, node.renewal()),
            await one.plane.heartbeat(node.name, node.peer, node.beat()),
            await one.plane.desired(node.name, node.peer, (0, 0), 0),
        ):
            assert answer == NOT_LEADER
        # But whose it is: who enrols must know whom to believe before he is sent on.
        assert isinstance(await one.plane.authorities(), bytes)
        one.kernel._turn(leading=True)


async def test_certificates_are_of_the_issuing_authority_and_documents_of_the_signing_key(
    autojump_clock: MockClock,
) -> None:
    async with node_plane(autojump_clock) as one:
        node = await one.enrolled("node-1")
        # Who signs is looked up here, and at once again when it is another.
        assert isinstance(await one.plane.desired(node.name, node.peer, (0, 0), 0), SignedDocument)
        await rotate(one)
        for stage in ("spreading", "turning"):
            trust = one.kernel.state.trust
            assert trust is not None
            assert trust.stage.value == stage
            document = await one.plane.desired(node.name, node.peer, (0, 0), 0)
            assert isinstance(document, SignedDocument)
            assert document.key_id == trust.signing.key_id
            newcomer = await one.enrolled(f"newcomer-{stage}")
            assert one.kernel.state.nodes[newcomer.name].certificates[-1].issuer == trust.issuing.fingerprint
            for party in (node, newcomer):
                assert isinstance(
                    await one.plane.heartbeat(party.name, party.peer, party.beat(trust_version=trust.version)), bytes
                )
            await one.kernel.ask(Tick(), "janitor")
