"""Who is taken for a node, and where its replicas are reached: never where a heartbeat alone says."""

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_core import events
from lunanexa_core.commands import AddressNode
from lunanexa_core.deployment import Deployment
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.events import Event
from lunanexa_core.identity import checks
from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_core.identity.checks import check_peer
from lunanexa_core.ids import NodeId
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import Done, decide
from lunanexa_core.outcomes import Refusal
from lunanexa_core.placement.reconcile import plan
from lunanexa_core.placement.standing import Standing, view_of
from lunanexa_core.routing.reach import Reach, parse_data_address, reach
from lunanexa_core.routing.routable import NotRoutable, why_not_routable
from lunanexa_core.state import State
from tests.core.builders import (
    ASSIGNMENT,
    NODE,
    NOW,
    POLICY,
    after,
    begin,
    certificate,
    engine,
    enrolled_events,
    heard,
    joining,
    report,
    serving_events,
    spec,
    state_of,
)
from tests.examples import examples

OWN = "lunanexa://cl_1/node/node-1"


def peer(identity: str = OWN, serial: str = "1", ends_ms: int = NOW.wall_ms + 1_000) -> PeerCertificate:
    return PeerCertificate(identity=identity, serial=serial, not_before_s=0, not_after_s=ends_ms // 1_000)


@pytest.mark.parametrize(
    ("shown", "refusal"),
    [
        (None, checks.NO_CERTIFICATE),
        (peer(), None),
        (peer(OWN + "0"), checks.OTHER_CERTIFICATE),
        (peer("lunanexa://cl_1/node/node-2"), checks.OTHER_CERTIFICATE),
        (peer("lunanexa://cl_2/node/node-1"), checks.OTHER_CERTIFICATE),
        (peer("lunanexa://cl_1/controller/node-1"), checks.OTHER_CERTIFICATE),
        (peer("lunanexa://cl_1/gateway/node-1"), checks.OTHER_CERTIFICATE),
        (peer("spiffe://cl_1/node/node-1"), checks.OTHER_CERTIFICATE),
        (peer(ends_ms=NOW.wall_ms), checks.EXPIRED),
        (peer(serial="dead"), checks.REVOKED),
    ],
)
def test_a_certificate_is_of_that_node_and_good(shown: PeerCertificate | None, refusal: Refusal | None) -> None:
    # An earlier enrolment's certificate was revoked by the next.
    again = attrs.evolve(certificate(0xBEEF), serial="1")
    state = state_of(
        [
            *serving_events(),
            events.NodeEnrolled(
                node=NODE, public_key="aa" * 32, agent_version="1", token="t", certificate=certificate(0xDEAD)
            ),
            events.NodeEnrolled(node=NODE, public_key="aa" * 32, agent_version="1", token="t", certificate=again),
        ]
    )
    state.revoked.pop("1")
    assert check_peer(state, NODE, shown, NOW) == refusal


def test_who_is_not_enrolled_is_nobody_whatever_it_shows() -> None:
    state = state_of([*serving_events(), events.NodeRegistered(NodeId("old"))])
    for name in ("old", "stranger"):
        shown = peer(f"lunanexa://cl_1/node/{name}")
        assert check_peer(state, NodeId(name), shown, NOW) == checks.NOT_ENROLLED
    assert check_peer(State(), NODE, peer(), NOW) == checks.OTHER_CERTIFICATE
    gone = state_of([*serving_events(), events.NodeRevoked(node=NODE)])
    assert check_peer(gone, NODE, peer(serial="another"), NOW) == checks.REVOKED
    retired = state_of([*serving_events(), events.NodeRetired(NODE)])
    assert check_peer(retired, NODE, peer(), NOW) is None, "it is told that it is retired"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.2:8500", EngineAddress("10.0.0.2", 8500)),
        ("dgx-1.lan:1", EngineAddress("dgx-1.lan", 1)),
        ("[fd00::1]:8500", EngineAddress("fd00::1", 8500)),
        ("fd00::1:8500", None),
        ("host", None),
        ("host:0", None),
        ("host:65536", None),
        ("host:1/", None),
        ("http://host:1", None),
        ("user@host:1", None),
        (":1", None),
        ("", None),
    ],
)
def test_data_addresses(text: str, address: EngineAddress | None) -> None:
    assert parse_data_address(text) == address


HOSTS = st.sampled_from(
    ["127.0.0.1", "127.9.9.9", "localhost", "::1", "10.0.0.66", "attacker.example", "127.0.0.1.evil.net", "0.0.0.0", ""]
)


@settings(max_examples=examples(100))
@given(host=HOSTS, port=st.sampled_from([9000, 11434]), bound=st.booleans(), url=st.booleans())
def test_a_node_leads_nobody_anywhere_by_what_it_reports(host: str, port: int, bound: bool, url: bool) -> None:
    more: list[Event] = []
    if bound:
        more.append(events.NodeAddressed(node=NODE, data_address="10.0.0.2:8500"))
    if url:
        adopted = spec(engine=engine(driver="generic_openai", binary=None, url="http://10.0.0.66:11434"))
        more.append(events.DeploymentApplied(Deployment(spec=adopted, generation=1)))
    there = reach(state_of([*serving_events(), *more]), report(host=host, port=port))
    if bound:
        assert there == Reach(host="10.0.0.2", port=8500, identity=OWN)
    elif host in ("127.0.0.1", "127.9.9.9", "localhost", "::1") or (url and (host, port) == ("10.0.0.66", 11434)):
        assert there == Reach(host=host, port=port)
    else:
        assert there is None


def test_what_is_not_reached_is_not_routable() -> None:
    state, elsewhere = state_of(serving_events()), report(host="10.0.0.66")
    assert why_not_routable(state, heard(), POLICY, report(), NOW) is None
    assert why_not_routable(state, heard(), POLICY, elsewhere, NOW) is NotRoutable.UNREACHABLE
    assert why_not_routable(state, heard(), POLICY, report(port=None), NOW) is NotRoutable.NO_ADDRESS
    state.replicas[ASSIGNMENT] = elsewhere
    view = view_of(state, heard(), POLICY, NOW)
    assert not view.is_ready(state.assignments[ASSIGNMENT])
    bound = state_of([*serving_events(), events.NodeAddressed(node=NODE, data_address="10.0.0.2:8500")])
    assert why_not_routable(bound, heard(), POLICY, elsewhere, NOW) is None


def test_an_operator_moves_a_data_listener() -> None:
    state = state_of(serving_events())
    moved = decide(state, heard(), POLICY, AddressNode(node=NODE, data_address="10.0.0.3:1"), NOW)
    assert (moved.answer, moved.events) == (Done(), (events.NodeAddressed(node=NODE, data_address="10.0.0.3:1"),))
    assert decide(state, heard(), POLICY, AddressNode(node=NODE, data_address=None), NOW).events == ()
    for command in (AddressNode(node=NODE, data_address="nowhere"), AddressNode(node=NodeId("n"), data_address=None)):
        assert isinstance(decide(state, heard(), POLICY, command, NOW).answer, Refusal)


@pytest.mark.parametrize("loopback", [False, True])
def test_only_a_token_for_this_machine_does_without_a_data_listener(loopback: bool) -> None:
    """Else what the node reports would lead gateways to any port of the controller's own loopback."""
    state = State()
    mint, enrol = joining(data_address="10.0.0.2:8500")
    for command in (begin(), attrs.evolve(mint, loopback=loopback), enrol):
        for event in decide(state, heard(), POLICY, command, NOW).events:
            apply(state, event, epoch=1, wall_ms=NOW.wall_ms)
    assert state.nodes[NODE].data_address == "10.0.0.2:8500"
    answer = decide(state, heard(), POLICY, AddressNode(node=NODE, data_address=None), NOW)
    if loopback:
        assert answer.events == (events.NodeAddressed(node=NODE, data_address=None),)
        return
    assert isinstance(answer.answer, Refusal)
    assert (answer.answer.param, answer.events) == ("data_address", ())
    assert "lunanexa node token node-1 --again --loopback" in answer.answer.message


def test_a_revoked_node_is_routed_to_no_more_and_replaced_at_once() -> None:
    state = state_of([*serving_events(), *enrolled_events(NodeId("node-2"))])
    kept = report()
    state_after = state_of([*serving_events(), *enrolled_events(NodeId("node-2")), events.NodeRevoked(node=NODE)])
    assert why_not_routable(state, heard(), POLICY, kept, NOW) is None
    assert why_not_routable(state_after, heard(), POLICY, kept, NOW) is NotRoutable.NODE_REVOKED
    view = view_of(state_after, heard(), POLICY, NOW)
    assert view.standing(state_after.assignments[ASSIGNMENT]) is Standing.GONE
    changes = plan(state_after, heard(), POLICY, (ASSIGNMENT,), after(0))
    placed = [change.assignment.node for change in changes if isinstance(change, events.AssignmentPlaced)]
    removed = [change.assignment for change in changes if isinstance(change, events.AssignmentRemoved)]
    assert (placed, removed) == ([NodeId("node-2")], [ASSIGNMENT])
