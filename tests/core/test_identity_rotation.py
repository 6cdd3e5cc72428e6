"""What all trust, and how it is exchanged: at no moment is there a node that trusts nobody, or that nobody trusts."""

from collections.abc import Callable

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lunanexa_core import events
from lunanexa_core.commands import Begin, Command, RenewCertificate, RevokeNode, RotateTrust, Tick
from lunanexa_core.identity.certificate import NodeCertificate
from lunanexa_core.identity.rotate import awaited
from lunanexa_core.identity.trust import Authority, SigningKey, TrustSet, TrustStage, first_trust, next_step, spread
from lunanexa_core.ids import NodeId
from lunanexa_core.kernel.absorb import absorb
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import Decision, Done, decide
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.recovery import rebase
from lunanexa_core.recovery_plan import recovery_plan
from lunanexa_core.recovery_reasons import RecoveryCause, RecoveryReason
from lunanexa_core.state import State
from lunanexa_core.time import Instant
from tests.core.builders import (
    AUTHORITY,
    NODE,
    NOW,
    POLICY,
    SIGNING_KEY,
    authority_and_key,
    begin,
    certificate,
    heard,
    heartbeat,
    joining,
    reported,
    serving_events,
    state_of,
)
from tests.examples import examples


def rotate(authority: Authority, signing_key: SigningKey) -> RotateTrust:
    return RotateTrust(authority=authority, signing_key=signing_key)


NEW = authority_and_key(2)
FIRST = first_trust(AUTHORITY, SIGNING_KEY)
SPREADING = spread(FIRST, *NEW)
TURNING = next_step(SPREADING)


def trusting(trust: TrustSet | None) -> State:
    state = state_of(serving_events())
    state.trust = trust
    return state


@pytest.mark.parametrize(
    ("known", "first", "then"),
    [
        (None, begin(), FIRST),
        (FIRST, begin(), FIRST),
        (FIRST, begin(authority=NEW[0], signing_key=NEW[1], held=frozenset({AUTHORITY.fingerprint})), FIRST),
        (FIRST, begin(authority=NEW[0], signing_key=NEW[1]), first_trust(*NEW, 2)),
        (SPREADING, begin(), SPREADING),
        (SPREADING, begin(authority=NEW[0], signing_key=NEW[1]), TURNING),
        (TURNING, begin(), TURNING),
        (TURNING, begin(authority=NEW[0], signing_key=NEW[1]), TURNING),
    ],
)
def test_a_leader_begins_with_what_the_cluster_trusts(known: TrustSet | None, first: Begin, then: TrustSet) -> None:
    state = trusting(known)
    for event in decide(state, heard(), POLICY, first, NOW).events:
        apply(state, event, epoch=2)
    assert state.trust == then


def test_a_rotation_is_begun_once_and_with_other_keys() -> None:
    begun = decide(trusting(FIRST), heard(), POLICY, rotate(*NEW), NOW)
    assert begun.events == (events.TrustChanged(SPREADING),)
    for under_way in (SPREADING, TURNING):
        assert decide(trusting(under_way), heard(), POLICY, rotate(*authority_and_key(3)), NOW) == Decision(Done())
    for same in (rotate(AUTHORITY, NEW[1]), rotate(NEW[0], SIGNING_KEY)):
        assert isinstance(decide(trusting(FIRST), heard(), POLICY, same, NOW).answer, Refusal)


def test_it_waits_for_who_may_come_back_and_for_nobody_else() -> None:
    state, observed = trusting(SPREADING), Observed(began_mono_ms=0)
    assert awaited(state, observed) == (NODE,), "nothing was heard of it"
    assert awaited(state, heard()) == (NODE,), "an agent that tells no version follows none"
    for event in (events.NodeRetired(NODE), events.NodeRevoked(node=NODE)):
        assert awaited(state_of([*serving_events(), events.TrustChanged(SPREADING), event]), observed) == ()
    assert awaited(trusting(FIRST), observed) == ()
    assert awaited(trusting(None), observed) == ()
    state.nodes[NODE] = attrs.evolve(state.nodes[NODE], certificates=())
    assert awaited(state, observed) == (), "of an older version; it must enrol anew anyway"


def test_a_store_that_was_set_back_trusts_by_a_version_above_all_that_nodes_tell_of() -> None:
    state, observed = trusting(FIRST), heard()
    reason = RecoveryReason(cause=RecoveryCause.ROWS_MISSING, sequence=9, epoch=1)
    apply(state, events.RecoveryBegan((reason,)), epoch=1)
    reading = observed.nodes[NODE]
    observed.nodes[NODE] = attrs.evolve(reading, heartbeat=attrs.evolve(reading.heartbeat, trust_version=7))
    found = rebase(state, observed, POLICY, recovery_plan(state, observed, POLICY, NOW).digest, NOW)
    assert isinstance(found, list)
    assert events.TrustChanged(attrs.evolve(FIRST, version=8)) in found


AWAY = st.one_of(st.just(set[int]()), st.sets(st.integers(0, 2), max_size=2))


@attrs.define
class Machine:
    """A node as it is: the set that it follows and the certificate that it shows."""

    trust: TrustSet
    certificate: NodeCertificate
    revoked: bool = False


class RotationMachine(RuleBasedStateMachine):
    """Operators rotate; nodes are away, come back, restart and renew when they like, and may not hear what they are
    answered; leaders change."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.state, self.observed, self.policy = State(), Observed(began_mono_ms=NOW.mono_ms), Policy()
        self.machines: dict[NodeId, Machine] = {}
        self.made = 1
        self.serials = 0
        self.sequence = 0

    def ask(self, command: Command) -> Decision:
        decision = decide(self.state, self.observed, self.policy, command, self.now)
        for event in decision.events:
            apply(self.state, event, epoch=1, wall_ms=self.now.wall_ms)
        absorb(self.state, self.observed, self.policy, command, decision, self.now)
        return decision

    @property
    def trust(self) -> TrustSet:
        assert self.state.trust is not None
        return self.state.trust

    @initialize()
    def begins(self) -> None:
        self.ask(begin())

    @rule(number=st.integers(0, 2))
    def enrols(self, number: int) -> None:
        name = NodeId(f"node-{number}")
        mint, enrol = joining(name, again=True, certificate=self.issued())
        self.ask(mint)
        self.ask(enrol)
        self.machines[name] = Machine(trust=self.trust, certificate=enrol.certificate)

    def issued(self) -> NodeCertificate:
        self.serials += 1
        return attrs.evolve(certificate(self.serials, issued=self.now), issuer=self.trust.issuing.fingerprint)

    @precondition(lambda self: self.machines)
    @rule(ms=st.sampled_from([0, 2_000, 61_000, 50_000_000]), away=AWAY)
    def are_heard(self, ms: int, away: set[int]) -> None:
        """All but those who are away; with its heartbeat a node reads the newest document."""
        self.now = Instant(self.now.mono_ms + ms, self.now.wall_ms + ms)
        for name, machine in self.there(away):
            self.sequence += 1
            beat = attrs.evolve(
                heartbeat(self.sequence, node=name),
                trust_version=machine.trust.version,
                certificate=machine.certificate.serial,
            )
            assert self.ask(reported(beat)).answer == Done()
            machine.trust = self.trust
        self.ask(Tick())

    @precondition(lambda self: self.machines)
    @rule(away=AWAY, heard=st.booleans())
    def renew(self, away: set[int], heard: bool = True) -> None:
        for name, machine in self.there(away):
            renewal = RenewCertificate(
                node=name,
                public_key=self.state.nodes[name].public_key or "",
                certificate=self.issued(),
                by_challenge=False,
                agent_version="0.1.0",
            )
            if not isinstance(self.ask(renewal).answer, Refusal) and heard:
                machine.certificate = renewal.certificate
        self.ask(Tick())

    @precondition(lambda self: self.machines)
    @rule(data=st.data())
    def is_revoked(self, data: st.DataObject) -> None:
        name, machine = self.drawn(data)
        self.ask(RevokeNode(node=name))
        machine.revoked = True

    @rule()
    def rotates(self) -> None:
        self.made += 1
        self.ask(rotate(*authority_and_key(self.made)))

    @rule()
    def another_leads(self) -> None:
        """It has heard nobody."""
        self.observed = Observed(began_mono_ms=self.now.mono_ms)

    def there(self, away: set[int]) -> list[tuple[NodeId, Machine]]:
        gone = {NodeId(f"node-{number}") for number in away}
        return [one for one in sorted(self.machines.items()) if one[0] not in gone and not one[1].revoked]

    def drawn(self, data: st.DataObject) -> tuple[NodeId, Machine]:
        name = data.draw(st.sampled_from(sorted(self.machines)))
        return name, self.machines[name]

    @invariant()
    def everybody_trusts_and_is_trusted(self) -> None:
        self.check()

    def check(self) -> None:
        for name, machine in self.machines.items():
            if machine.revoked:
                continue
            assert machine.certificate.issuer in {one.fingerprint for one in self.trust.authorities}, name
            followed = {one.fingerprint for one in machine.trust.authorities}
            assert self.trust.issuing.fingerprint in followed, name
            assert self.trust.signing.key_id in machine.trust.keys, name

    @invariant()
    def two_of_each_at_most(self) -> None:
        if self.state.trust is not None:
            stable = self.trust.stage is TrustStage.STABLE
            assert len(self.trust.authorities) == len(self.trust.signing_keys) == (1 if stable else 2)


def test_a_rotation_goes_through_as_nodes_follow() -> None:
    one = RotationMachine()
    one.ask(begin())
    for number in range(3):
        one.enrols(number)
    one.rotates()
    away, everybody = {2}, set[int]()
    steps: list[tuple[TrustStage, Callable[[], object]]] = [
        (TrustStage.SPREADING, lambda: one.are_heard(0, everybody)),
        (TrustStage.SPREADING, lambda: one.are_heard(0, away)),
        (TrustStage.TURNING, lambda: one.are_heard(0, everybody)),
        (TrustStage.TURNING, lambda: one.are_heard(0, everybody)),
        (TrustStage.TURNING, lambda: one.are_heard(0, everybody)),
        (TrustStage.TURNING, lambda: one.renew(away)),
        (TrustStage.TURNING, lambda: one.are_heard(0, everybody)),
        (TrustStage.TURNING, lambda: one.renew(everybody, heard=False)),
        (TrustStage.TURNING, lambda: one.are_heard(70_000, everybody)),
        (TrustStage.TURNING, lambda: one.renew(everybody)),
        (TrustStage.STABLE, lambda: one.are_heard(0, everybody)),
    ]
    for expected, step in steps:
        step()
        one.check()
        assert one.trust.stage is expected
    assert one.trust == first_trust(*authority_and_key(2), 4)


RotationMachine.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=40)
TestRotation = RotationMachine.TestCase
