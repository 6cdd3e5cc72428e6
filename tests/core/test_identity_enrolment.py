"""Tokens and certificates of nodes: who is let in, once, and who has a certificate renewed."""

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_core import events
from lunanexa_core.commands import Command, EnrolNode, MintToken, RenewCertificate, RevokeNode, SetDirective
from lunanexa_core.contract.trust import TokenMinted
from lunanexa_core.events import Event, Liveness, NodeCertified
from lunanexa_core.identity.certificate import CROWDED_EVERY_MS, HELD_MAX, RENEW_EVERY_MS, VALID_MS, NodeCertificate
from lunanexa_core.identity.checks import NOT_ENROLLED
from lunanexa_core.identity.enrol import BAD_TOKEN, REPEAT_MS, VERSION_MAX
from lunanexa_core.identity.renew import TOO_LATE, given_before
from lunanexa_core.identity.token import TOKEN_MS, TOKENS_MAX, EnrolmentToken
from lunanexa_core.identity.trust import next_step, spread
from lunanexa_core.ids import BootId, NodeId
from lunanexa_core.kernel.absorb import absorb
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import Decision, Done, decide
from lunanexa_core.nodes.directive import RETIRED
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.southbound.documents import Directive, SignedDocument
from lunanexa_core.southbound.enrolment import Enrolment
from lunanexa_core.state import State
from lunanexa_core.time import Instant
from tests.core.builders import (
    ASSIGNMENT,
    NODE,
    NOW,
    POLICY,
    after,
    authority_and_key,
    begin,
    certificate,
    heard,
    heartbeat,
    joining,
    report,
    reported,
    serving_events,
    state_of,
)
from tests.examples import examples

OTHER = NodeId("node-2")
DAY_MS = 86_400_000


def led() -> State:
    """A cluster that has begun."""
    state = State()
    ask(state, begin())
    return state


def ask(state: State, command: Command, now: Instant = NOW) -> Decision:
    decision = decide(state, heard(), POLICY, command, now)
    for event in decision.events:
        apply(state, event, epoch=1, wall_ms=now.wall_ms)
    return decision


def refused(decision: Decision) -> Refusal:
    assert isinstance(decision.answer, Refusal), decision.answer
    assert not decision.events
    return decision.answer


def of_node(node: NodeId, number: int, now: Instant = NOW) -> NodeCertificate:
    return attrs.evolve(certificate(number, issued=now), serial=f"{node}-{number}")


def enrolled(now: Instant = NOW) -> State:
    state = led()
    for command in joining(certificate=of_node(NODE, 1, now)):
        ask(state, command, now)
    return state


def test_a_token_lets_one_key_in_once() -> None:
    state = led()
    mint, enrol = joining()
    ask(state, mint)
    assert ask(state, enrol).answer == Done()
    assert state.nodes[NODE].public_key == enrol.public_key
    stolen = attrs.evolve(enrol, public_key="bb" * 32, certificate=certificate(2))
    assert refused(ask(state, stolen)) == BAD_TOKEN
    # The node did not hear the answer: what it was given first is void, as nobody has it.
    again = attrs.evolve(enrol, certificate=certificate(3))
    soon = refused(ask(state, again, after(1)))
    assert (soon.outcome, soon.retry_after_ms) == (Outcome.RATE_LIMITED, REPEAT_MS - 1)
    assert ask(state, again, after(REPEAT_MS)).answer == Done()
    assert [one.serial for one in state.nodes[NODE].certificates] == ["3"]
    assert set(state.revoked) == {"1"}


@pytest.mark.parametrize("said", [Directive.CORDON, Directive.DRAIN, Directive.RETIRE])
def test_by_its_used_token_a_node_undoes_nothing_that_an_operator_said(said: Directive) -> None:
    state = led()
    mint, enrol = joining()
    ask(state, mint)
    ask(state, enrol)
    ask(state, SetDirective(node=NODE, directive=said))
    again = attrs.evolve(enrol, certificate=certificate(2))
    assert refused(ask(state, again, after(REPEAT_MS))) == BAD_TOKEN
    assert state.nodes[NODE].directive is said


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"agent_version": "v" * (VERSION_MAX + 1)}, "agent_version"),
        ({"agent_version": "0.1\x1b[2J"}, "agent_version"),
        ({"agent_version": ""}, "agent_version"),
        ({"public_key": "AA" * 32}, "public_key"),
        ({"public_key": " " * 9_000 + "aa" * 32}, "public_key"),
    ],
)
def test_what_a_node_says_of_itself_is_short_where_the_journal_keeps_it(changes: dict[str, Any], param: str) -> None:
    state = led()
    mint, enrol = joining()
    ask(state, mint)
    tried = attrs.evolve(enrol, **changes)
    assert refused(ask(state, tried)).param == param
    if param == "agent_version":
        now = after(RENEW_EVERY_MS)
        assert refused(ask(enrolled(), renewal(2, now, **changes), now)).param == param


def test_a_renewal_on_its_way_is_nothing_to_who_took_the_name_meanwhile() -> None:
    """Its signature was good when it was verified; then another machine was let in, with a key of its own."""
    state, now = enrolled(), after(RENEW_EVERY_MS)
    late = renewal(2, now, certificate=attrs.evolve(of_node(NODE, 2, now), issuer="f2" * 32))
    for command in joining(again=True, token="tok_again", public_key="bb" * 32, certificate=of_node(NODE, 3, now)):
        assert not isinstance(ask(state, command, now).answer, Refusal)
    assert refused(ask(state, late, now)) == NOT_ENROLLED
    assert [one.serial for one in state.nodes[NODE].certificates] == ["node-1-3"]


@settings(max_examples=examples(60))
@given(
    node=st.sampled_from([NODE, OTHER]),
    token=st.sampled_from(["tok_node-1", "tok_other", ""]),
    digest=st.sampled_from(["right", "00" * 32, ""]),
    late_ms=st.sampled_from([0, 1, REPEAT_MS, TOKEN_MS - 1, TOKEN_MS, TOKEN_MS + 1, DAY_MS]),
    key=st.sampled_from(["aa" * 32, "bb" * 32]),
    used=st.booleans(),
)
def test_only_the_right_secret_in_time_for_the_right_node(
    node: NodeId, token: str, digest: str, late_ms: int, key: str, used: bool
) -> None:
    state = led()
    mint, enrol = joining()
    ask(state, mint)
    if used:
        ask(state, enrol)
    tried = EnrolNode(
        node=node,
        public_key=key,
        agent_version="0.1.0",
        token=token,
        digest=mint.digest if digest == "right" else digest,
        certificate=of_node(node, 9),
    )
    decision = ask(state, tried, after(late_ms))
    good = node == NODE and token == mint.token and digest == "right" and late_ms < TOKEN_MS
    if good and used and key == enrol.public_key and late_ms < REPEAT_MS:
        assert refused(decision).outcome is Outcome.RATE_LIMITED
    elif good and (not used or key == enrol.public_key):
        assert decision.answer == Done()
        assert state.nodes[NODE].public_key == key
    else:
        assert refused(decision) == BAD_TOKEN
        assert node not in state.nodes or state.nodes[node].public_key == enrol.public_key


def test_a_known_node_enrols_again_only_by_an_operators_word() -> None:
    state = enrolled()
    mint, enrol = joining(public_key="bb" * 32, certificate=certificate(2), data_address="10.0.0.2:8500")
    refusal = refused(ask(state, mint))
    assert (refusal.outcome, refusal.param) == (Outcome.STALE_GENERATION, "again")
    ask(state, SetDirective(node=NODE, directive=Directive.CORDON))
    before = state.nodes[NODE].generation
    ask(state, attrs.evolve(mint, again=True))
    ask(state, enrol)
    node = state.nodes[NODE]
    assert set(state.revoked) == {f"{NODE}-1"}
    assert (node.public_key, node.data_address, node.directive) == ("bb" * 32, "10.0.0.2:8500", Directive.ACTIVE)
    assert node.generation > before


def test_an_earlier_token_of_a_node_is_void_once_another_is_minted() -> None:
    state = led()
    mint, enrol = joining()
    ask(state, mint)
    ask(state, attrs.evolve(mint, token="tok_new"))
    assert refused(ask(state, enrol)) == BAD_TOKEN
    assert ask(state, attrs.evolve(enrol, token="tok_new")).answer == Done()
    assert list(state.tokens) == ["tok_new"]


def test_tokens_are_bounded_and_leave_when_their_time_is_over() -> None:
    state = led()
    for number in range(TOKENS_MAX):
        ask(state, MintToken(node=NodeId(f"n{number}"), token=f"t{number}", digest="d"))
    one_more = MintToken(node=NodeId("late"), token="t", digest="d")
    assert refused(ask(state, one_more)).outcome is Outcome.RATE_LIMITED
    assert ask(state, MintToken(node=NodeId("n0"), token="t", digest="d")).events
    assert ask(state, one_more, after(TOKEN_MS)).events
    assert list(state.tokens) == ["t"]


@pytest.mark.parametrize("name", ["", "a b", "n/1", "n" * 257])
def test_a_node_has_a_name_that_a_certificate_can_bear(name: str) -> None:
    refusal = refused(ask(led(), MintToken(node=NodeId(name), token="t", digest="d")))
    assert (refusal.outcome, refusal.param) == (Outcome.INVALID_REQUEST, "node")


def test_only_a_token_for_the_controllers_own_machine_lets_a_node_do_without_a_data_listener() -> None:
    mint, enrol = joining()
    state = led()
    ask(state, attrs.evolve(mint, loopback=False))
    assert refused(ask(state, enrol)).param == "data_address"
    assert ask(state, attrs.evolve(enrol, data_address="10.0.0.2:8500")).answer == Done()


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:0", "host:99999", "http://host:1", "a b:1"])
def test_a_data_address_is_host_and_port(address: str) -> None:
    state = led()
    mint, enrol = joining(data_address=address)
    ask(state, mint)
    assert refused(ask(state, enrol)).param == "data_address"
    assert ask(state, attrs.evolve(enrol, data_address="[fd00::1]:8500")).answer == Done()


def renewal(number: int, now: Instant, **changes: object) -> RenewCertificate:
    base = RenewCertificate(
        node=NODE,
        public_key="aa" * 32,
        certificate=of_node(NODE, number, now),
        by_challenge=False,
        agent_version="0.2.0",
    )
    return attrs.evolve(base, **changes)  # type: ignore[arg-type]  # changes name real fields


def test_a_certificate_is_renewed_and_the_old_one_is_good_meanwhile() -> None:
    state, half = enrolled(), after(VALID_MS // 2)
    before = state.nodes[NODE].generation
    assert ask(state, renewal(2, half), half).answer == Done()
    node = state.nodes[NODE]
    assert [one.serial for one in node.certificates] == ["node-1-1", "node-1-2"]
    assert (node.agent_version, node.generation, state.revoked) == ("0.2.0", before, {})
    later = after(VALID_MS + 1)
    ask(state, renewal(3, later), later)
    assert [one.serial for one in state.nodes[NODE].certificates] == ["node-1-2", "node-1-3"]


def test_of_too_many_certificates_the_oldest_are_revoked() -> None:
    """Of an agent that did not hear the answers. More it has no use for."""
    state = enrolled()
    before = state.nodes[NODE].generation
    for number in range(2, HELD_MAX + 1):
        now = after(number * RENEW_EVERY_MS)
        assert ask(state, renewal(number, now), now).answer == Done()
    full = HELD_MAX * RENEW_EVERY_MS
    early = after(full + CROWDED_EVERY_MS - 1)
    assert refused(ask(state, renewal(5, early), early)).retry_after_ms == 1
    assert state.nodes[NODE].generation == before
    late = after(full + CROWDED_EVERY_MS)
    assert ask(state, renewal(5, late), late).answer == Done()
    assert len(state.nodes[NODE].certificates) == HELD_MAX
    assert set(state.revoked) == {"node-1-1"}
    assert state.nodes[NODE].generation == before + 1, "each revocation is told to all"


def test_what_nobody_would_believe_is_not_one_of_too_many() -> None:
    """A node that a rotation a day leaves behind its answers, each day."""
    state, last = enrolled(), 3 * HELD_MAX
    for number in range(2, last):
        assert state.trust is not None
        state.trust = next_step(spread(state.trust, *authority_and_key(number)))
        of_new_authority(state, number)
        state.trust = next_step(state.trust)
        assert len(state.nodes[NODE].certificates) <= 3
    of_new_authority(state, last)  # Once a minute, as ever.
    assert state.revoked == {}


def of_new_authority(state: State, number: int) -> None:
    assert state.trust is not None
    now, issuer = after(number * RENEW_EVERY_MS), state.trust.issuing.fingerprint
    given = attrs.evolve(of_node(NODE, number, now), issuer=issuer)
    assert ask(state, renewal(number, now, certificate=given), now).answer == Done()
    assert state.nodes[NODE].certificates[-1] == given


def test_what_was_given_for_a_request_is_found_while_it_counts() -> None:
    state, half = enrolled(), after(VALID_MS // 2)
    given = attrs.evolve(of_node(NODE, 2, half), request="d1")
    ask(state, renewal(2, half, certificate=given), half)
    found = [given_before(state, NODE, "d1", half.wall_ms + ms) for ms in (0, VALID_MS // 2 - 1, VALID_MS // 2)]
    assert found == [given, given, None]
    for other in ("", "d2"):
        assert given_before(state, NODE, other, half.wall_ms) != given
    assert given_before(state, OTHER, "d1", half.wall_ms) is None
    assert state.trust is not None
    state.trust = next_step(spread(state.trust, *authority_and_key(2)))
    assert given_before(state, NODE, "d1", half.wall_ms) is None, "another authority issues"


@settings(max_examples=examples(30))
@given(
    waits=st.lists(
        st.sampled_from([1_000, RENEW_EVERY_MS, RENEW_EVERY_MS, 9 * RENEW_EVERY_MS]), min_size=20, max_size=60
    )
)
def test_a_node_can_not_have_all_documents_made_anew_by_renewing(waits: list[int]) -> None:
    state, passed_ms, given, taken, before = enrolled(), 0, 1, False, state_generation(enrolled())
    for number, wait_ms in enumerate((*waits, CROWDED_EVERY_MS, *waits, DAY_MS), 2):
        passed_ms += wait_ms
        now = after(passed_ms)
        # A leader's wall clock may be set at any time: what it issues is dated by that.
        dated = of_node(NODE, number, after(passed_ms + (number % 3 - 1) * 3_600_000))
        taken = ask(state, renewal(number, now, certificate=dated), now).answer == Done()
        given += taken
        assert given <= HELD_MAX + passed_ms // CROWDED_EVERY_MS
        assert state_generation(state) - before <= passed_ms // CROWDED_EVERY_MS
    assert taken, "and yet it is renewed"


def state_generation(state: State) -> int:
    return state.nodes[NODE].generation


def test_a_node_is_not_given_certificates_as_fast_as_it_asks() -> None:
    state = enrolled()
    refusal = refused(ask(state, renewal(2, after(1)), after(1)))
    assert (refusal.outcome, refusal.retry_after_ms) == (Outcome.RATE_LIMITED, RENEW_EVERY_MS - 1)
    turned = attrs.evolve(of_node(NODE, 2, after(1)), issuer="f2" * 32)
    assert ask(state, renewal(2, after(1), certificate=turned), after(1)).answer == Done(), "of another authority"


@pytest.mark.parametrize("by_ms", [-DAY_MS, -3_600_000, 3_600_000, DAY_MS])
def test_a_clock_that_was_set_ends_no_limit_and_makes_none(by_ms: int) -> None:
    """The clock by which events are dated leans only slowly towards the one by which certificates are."""
    state = enrolled()
    dated = of_node(NODE, 2, after(RENEW_EVERY_MS + by_ms))
    now = after(RENEW_EVERY_MS)
    assert ask(state, renewal(2, now, certificate=dated), now).answer == Done()
    soon, later = after(RENEW_EVERY_MS + 1), after(2 * RENEW_EVERY_MS)
    assert refused(ask(state, renewal(3, soon), soon)).retry_after_ms == RENEW_EVERY_MS - 1
    assert ask(state, renewal(3, later), later).answer == Done()


@pytest.mark.parametrize(
    ("days", "keep_days", "taken"),
    [(29, 30, True), (30, 30, True), (31, 30, False), (2, 1, False), (0, 0, True), (1, 0, False)],
)
def test_an_expired_certificate_is_renewed_by_challenge_for_a_while(days: int, keep_days: int, taken: bool) -> None:
    state, policy = enrolled(), attrs.evolve(POLICY, renew_expired_ms=keep_days * DAY_MS)
    now = after(VALID_MS + days * DAY_MS)
    decision = decide(state, heard(), policy, renewal(2, now, by_challenge=True), now)
    if not taken:
        assert refused(decision) == TOO_LATE
        return
    (event,) = decision.events
    assert isinstance(event, NodeCertified)
    assert event.by_challenge


def test_who_is_none_of_ours_has_nothing_renewed() -> None:
    now = after(RENEW_EVERY_MS)
    for state, outcome in (
        (led(), Outcome.PERMISSION_DENIED),
        (state_of([*serving_events(), events.NodeRetired(NODE)]), Outcome.NODE_RETIRED),
        (state_of([*serving_events(), events.NodeRevoked(node=NODE)]), Outcome.PERMISSION_DENIED),
        (state_of([events.NodeRegistered(NODE)]), Outcome.PERMISSION_DENIED),
    ):
        assert refused(ask(state, renewal(2, now), now)).outcome is outcome


def test_a_revoked_node_is_nobody_until_it_enrols_anew() -> None:
    state = state_of(serving_events())
    mint, _ = joining(again=True)
    ask(state, mint)
    before = {name: node.generation for name, node in state.nodes.items()}
    ask(state, RevokeNode(node=NODE, reason="stolen"))
    node = state.nodes[NODE]
    assert (node.revoked, node.public_key, node.certificates) == (True, None, ())
    assert node.liveness is Liveness.LOST
    assert (state.tokens, state.replicas, state.replica_node) == ({}, {}, {})
    assert [(one.node, one.revoked_wall_ms) for one in state.revoked.values()] == [(NODE, NOW.wall_ms)]
    assert all(state.nodes[name].generation == generation + 1 for name, generation in before.items())
    assert ask(state, RevokeNode(node=NODE)) == Decision(Done()), "once is enough"
    assert refused(ask(state, attrs.evolve(mint, again=False))).param == "again"
    for command in joining(again=True, certificate=certificate(2)):
        assert not isinstance(ask(state, command).answer, Refusal)
    assert not state.nodes[NODE].revoked
    assert ASSIGNMENT in state.assignments, "what becomes of its place is the planner's"


def test_a_retired_node_may_enrol_anew_by_an_operators_word() -> None:
    state = state_of([*serving_events(), events.NodeRetired(NODE)])
    mint, enrol = joining(again=True, certificate=certificate(2))
    assert ask(state, SetDirective(node=NODE, directive=Directive.ACTIVE)).answer == RETIRED
    ask(state, mint)
    ask(state, enrol)
    assert (state.nodes[NODE].retired, state.nodes[NODE].directive) == (False, Directive.ACTIVE)


@pytest.mark.parametrize("reason", ["x" * 257, "a\nb"])
def test_a_reason_is_short_and_printable(reason: str) -> None:
    assert refused(ask(enrolled(), RevokeNode(node=NODE, reason=reason))).param == "reason"
    assert refused(ask(enrolled(), RevokeNode(node=OTHER))).outcome is Outcome.NOT_FOUND


@settings(max_examples=examples(40))
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["enrol", "renew", "revoke", "turn"]),
            st.sampled_from([NODE, OTHER]),
            st.sampled_from([RENEW_EVERY_MS, DAY_MS // 2, DAY_MS]),
        ),
        max_size=12,
    )
)
def test_documents_of_one_generation_have_one_content(steps: list[tuple[str, NodeId, int]]) -> None:
    """What was revoked leaves documents only with a change that all are told of."""
    state, now = led(), NOW
    seen: dict[tuple[NodeId, int], tuple[object, ...]] = {}
    for number, (step, node, ms) in enumerate(steps):
        now = Instant(now.mono_ms + ms, now.wall_ms + ms)
        known = state.nodes.get(node)
        happened: list[Event] = []
        match step:
            case "enrol":
                happened.append(
                    events.NodeEnrolled(
                        node=node,
                        public_key="aa" * 32,
                        agent_version="0.1.0",
                        token="t",
                        certificate=of_node(node, number, now),
                    )
                )
            case "renew" if known is not None and known.public_key is not None:
                happened.append(
                    NodeCertified(
                        node=node, certificate=of_node(node, number, now), by_challenge=False, agent_version="0.1.0"
                    )
                )
            case "revoke" if known is not None:
                happened.append(events.NodeRevoked(node=node))
            case "turn":
                assert state.trust is not None
                happened.append(events.TrustChanged(attrs.evolve(state.trust, version=state.trust.version + 1)))
            case _:
                pass
        for event in happened:
            apply(state, event, epoch=1, wall_ms=now.wall_ms)
        for name, one in state.nodes.items():
            content = (state.trust, tuple(sorted(state.revoked)))
            assert seen.setdefault((name, one.generation), content) == content
        held = {one.serial for node_ in state.nodes.values() for one in node_.certificates}
        assert not held & set(state.revoked)


def test_no_token_is_told_by_what_is_written_of_a_value() -> None:
    secret = "a secret that nobody is told"
    minted = TokenMinted(node=NODE, token="tok_1", line=secret, expires_in_ms=1, node_url=None)
    document = SignedDocument(payload=secret.encode(), key_id="k", signature=b"")
    enrolment = Enrolment(
        node=NODE, public_key="aa" * 32, agent_version="1", token="tok_1", secret=secret, certificate_request="00"
    )
    token = EnrolmentToken(node=NODE, token="tok_1", secret=secret, authority="f1" * 32)
    for value in (minted, document, enrolment, token):
        assert secret not in repr(value)


def test_a_heartbeat_on_its_way_says_nothing_for_who_took_the_name_meanwhile() -> None:
    """Its signature was good when it was verified; then another machine was let in, with a key of its own."""
    state, observed = enrolled(), heard()
    late = reported(heartbeat(2, report(), boot=BootId("boot_2")))
    for command in joining(again=True, token="tok_again", public_key="bb" * 32, certificate=of_node(NODE, 2)):
        ask(state, command)
    decision = decide(state, observed, POLICY, late, NOW)
    assert refused(decision) == NOT_ENROLLED
    before = observed.nodes[NODE]
    absorb(state, observed, POLICY, late, decision, NOW)
    assert observed.nodes[NODE] == before, "it is not heard either"
    own = reported(heartbeat(2, report(), boot=BootId("boot_2")), public_key="bb" * 32)
    assert decide(state, observed, POLICY, own, NOW).answer == Done()
