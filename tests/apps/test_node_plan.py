"""Who an agent is, whom it dials and where it listens, of what it is told and what it remembers."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_apps.node.identity import NodeIdentity
from lunanexa_apps.node.plan import DATA_PORT, AgentPlan, Misfit, Told, listening, plan_agent
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.identity.token import EnrolmentToken
from lunanexa_core.identity.trust import Authority, SigningKey, first_trust
from lunanexa_core.ids import ClusterId, NodeId
from lunanexa_core.southbound.controllers import controller_url, parse_controller_url

NODE = NodeId("gpu-1")
FAR, NEAR = EngineAddress("10.0.0.1", 8401), EngineAddress("127.0.0.1", 8401)
OWN = "10.0.0.7"
TOKEN = EnrolmentToken(node=NODE, token="tok_1", secret="s" * 43, authority="a" * 64)
NEAR_TOKEN = attrs.evolve(TOKEN, loopback=True)
IDENTITY = NodeIdentity(
    node=NODE,
    cluster=ClusterId("c"),
    epoch=1,
    trust=first_trust(Authority(fingerprint="a" * 64, certificate="-"), SigningKey(key_id="k", public_key="00")),
    issuer="a" * 64,
    token="tok_1",
    controllers=("https://10.0.0.1:8401", "https://[fd00::1]:8401"),
    data_address="10.0.0.7:9000",
)


def towards(_: EngineAddress) -> str | None:
    return OWN


def planned(told: Told, identity: NodeIdentity | None = None) -> AgentPlan:
    plan = plan_agent(told, identity, towards)
    assert isinstance(plan, AgentPlan), plan
    return plan


def test_a_new_node_is_reached_at_its_own_address_towards_the_controller() -> None:
    plan = planned(Told(controllers=(FAR,), token=TOKEN))
    assert (plan.node, plan.controllers) == (NODE, (FAR,))
    assert plan.data_address == plan.data_listen == HostPort(OWN, DATA_PORT)


def test_a_node_of_the_controllers_own_machine_needs_no_data_listener() -> None:
    for told in (Told(token=NEAR_TOKEN), Told(token=NEAR_TOKEN, no_data_address=True)):
        plan = planned(attrs.evolve(told, controllers=(NEAR, FAR)))
        assert (plan.data_address, plan.data_listen) == (None, None)
    named = HostPort("127.0.0.1", 8500)
    assert planned(Told(controllers=(NEAR,), token=NEAR_TOKEN, data_address=named)).data_listen == named


def test_what_is_told_counts_more_than_what_is_guessed() -> None:
    named = HostPort("gpu-1.example", 8500)
    plan = planned(Told(controllers=(NEAR,), token=TOKEN, data_address=named))
    # The name may mean another address, or the loopback, to this machine itself.
    assert (plan.data_address, plan.data_listen) == (named, HostPort("0.0.0.0", 8500))
    plan = planned(Told(controllers=(FAR,), token=TOKEN, data_address=named, data_listen=HostPort(OWN, 1)))
    assert plan.data_listen == HostPort(OWN, 1)


def test_an_enrolled_node_is_told_nothing_and_knows_all() -> None:
    plan = planned(Told(), IDENTITY)
    assert plan.controllers == (FAR, EngineAddress("fd00::1", 8401))
    assert plan.data_listen == HostPort("10.0.0.7", 9000)
    # What was bound stays bound: only where it listens is the node's own business.
    plan = planned(Told(data_address=HostPort("1.2.3.4", 5), data_listen=HostPort("0.0.0.0", 6)), IDENTITY)
    assert (plan.data_address, plan.data_listen) == (HostPort("10.0.0.7", 9000), HostPort("0.0.0.0", 6))
    assert planned(Told(no_data_listener=True), IDENTITY).data_listen is None


def test_another_token_for_an_enrolled_node_may_name_another_address() -> None:
    again = attrs.evolve(TOKEN, token="tok_2")
    assert planned(Told(token=TOKEN), IDENTITY).data_address == HostPort("10.0.0.7", 9000)
    assert planned(Told(token=again), IDENTITY).data_address == HostPort(OWN, DATA_PORT)


@pytest.mark.parametrize(
    ("told", "identity", "field"),
    [
        (Told(controllers=(FAR,)), None, "--token-file"),
        (Told(token=TOKEN), None, "--controller"),
        (Told(controllers=(NEAR,), token=TOKEN, no_data_address=True), None, "--data-address"),
        (Told(token=attrs.evolve(TOKEN, node=NodeId("gpu-2"))), IDENTITY, "--token-file"),
    ],
)
def test_what_does_not_fit_names_its_option_and_what_mends_it(
    told: Told, identity: NodeIdentity | None, field: str
) -> None:
    misfit = plan_agent(told, identity, towards)
    assert isinstance(misfit, Misfit)
    assert misfit.field == field
    assert misfit.fix


def test_what_has_no_address_does_not_listen() -> None:
    assert listening(None) is None


@pytest.mark.parametrize(
    "url", ["http://h:1", "https://h", "https://h:", "https://h:0", "https://h:1/x", "https://u@h:1", "https://h:65536"]
)
def test_only_https_with_a_port_is_a_controller(url: str) -> None:
    assert parse_controller_url(url) is None


@given(st.sampled_from(["10.0.0.1", "fd00::1", "gpu-1.example"]), st.integers(1, 65_535))
def test_a_url_leads_back_to_its_address(host: str, port: int) -> None:
    assert parse_controller_url(controller_url(EngineAddress(host, port))) == EngineAddress(host, port)
