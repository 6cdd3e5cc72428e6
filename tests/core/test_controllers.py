"""Where nodes reach controllers: what the journal says of it, and when documents are others."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_core import commands, events
from lunanexa_core.deployment import Assignment
from lunanexa_core.events import EpochBegan, Event
from lunanexa_core.ids import HolderId
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import decide
from lunanexa_core.observed import Observed
from lunanexa_core.policy import Policy
from lunanexa_core.southbound.build import desired_state
from lunanexa_core.southbound.controllers import CONTROLLERS_MAX, controller_urls
from lunanexa_core.southbound.documents import DesiredState, check_order
from lunanexa_core.state import State
from tests.core.builders import AUTHORITY, NODE, NOW, SIGNING_KEY, serving_events, state_of
from tests.examples import examples

A, B, C = (HolderId(f"holder_{letter}") for letter in "abc")


def url(holder: HolderId) -> str:
    return f"https://{holder.replace('_', '-')}:8401"


def led(*begun: tuple[HolderId, str | None]) -> State:
    state = state_of(serving_events())
    for epoch, (holder, node_url) in enumerate(begun, start=2):
        lead(state, epoch, holder, node_url)
    return state


def lead(state: State, epoch: int, holder: HolderId | None, node_url: str | None) -> None:
    apply(state, EpochBegan(version="9", holder=holder, node_url=node_url), epoch=epoch, wall_ms=NOW.wall_ms)


def document(state: State) -> DesiredState:
    return desired_state(state, NODE, _no_key)


def _no_key(_assignment: Assignment) -> str:
    return "-"


def begun(state: State, node_url: str | None) -> Sequence[Event]:
    assert state.cluster is not None
    begin = commands.Begin(
        cluster=state.cluster, version="9", holder=A, node_url=node_url, authority=AUTHORITY, signing_key=SIGNING_KEY
    )
    return decide(state, Observed(began_mono_ms=NOW.mono_ms), Policy(), begin, NOW).events


def test_a_leader_writes_down_where_nodes_reach_it() -> None:
    state = led()
    assert begun(state, url(A))[0] == events.EpochBegan(version="9", holder=A, node_url=url(A))
    assert begun(state, None)[0] == events.EpochBegan(version="9", holder=A, node_url=None)


def test_the_one_that_leads_is_first() -> None:
    state = led((A, url(A)), (B, url(B)), (C, url(C)), (A, url(A)))
    assert document(state).controllers == (url(A), url(C), url(B))


def test_the_newest_address_of_a_controller_counts() -> None:
    state = led((A, url(A)), (B, url(B)), (A, "https://moved:8401"))
    assert controller_urls(state) == ("https://moved:8401", url(B))
    # Another installation in its place, as after the loss of a data directory.
    lead(state, 9, C, "https://moved:8401")
    assert set(state.controllers) == {B, C}


def test_who_says_none_is_told_of_no_more() -> None:
    state = led((A, url(A)), (B, url(B)), (B, None))
    assert controller_urls(state) == (url(A),)
    assert state.holder == B


def test_an_older_version_says_nothing() -> None:
    state = led((A, url(A)))
    lead(state, 3, None, None)
    assert (state.epoch, controller_urls(state)) == (3, (url(A),))


def test_not_more_than_nodes_keep() -> None:
    holders = [HolderId(f"holder_{number}") for number in range(CONTROLLERS_MAX + 3)]
    state = led(*((holder, url(holder)) for holder in holders))
    assert controller_urls(state) == tuple(url(holder) for holder in reversed(holders[3:]))


def test_a_leader_that_comes_back_changes_no_document() -> None:
    state = led((A, url(A)))
    before = document(state)
    lead(state, 3, A, url(A))
    assert document(state).generation == before.generation
    assert document(state).epoch == 3


_LEADERS = st.tuples(st.sampled_from([A, B, C, None]), st.sampled_from([url(A), url(B), "https://vip:1", None]))


@settings(max_examples=examples(60))
@given(st.lists(_LEADERS, min_size=1, max_size=12))
def test_whatever_happens_a_node_may_follow_each_next_document(begun: list[tuple[HolderId | None, str | None]]) -> None:
    """The same generation has the same content, and another content another generation."""
    state = state_of(serving_events())
    accepted = document(state)
    for epoch, (holder, node_url) in enumerate(begun, start=2):
        lead(state, epoch, holder, node_url)
        offered = document(state)
        assert check_order(accepted, offered, cluster=accepted.cluster, node=NODE) is None
        assert (offered.generation == accepted.generation) == (offered.controllers == accepted.controllers)
        assert len(set(offered.controllers)) == len(offered.controllers)
        accepted = offered
