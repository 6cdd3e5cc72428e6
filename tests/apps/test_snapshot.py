"""A snapshot is the state, to the last entry and in its order, or it is not used."""

import hashlib
import json

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_apps.controller.replay import Replay
from lunanexa_apps.controller.snapshot import Snapshot, Unusable, decode_snapshot, encode_snapshot
from lunanexa_core.events import Event
from lunanexa_core.journal import Head
from lunanexa_core.kernel.apply import APPLY_VERSION
from lunanexa_core.outcomes import Outcome
from lunanexa_core.state import State
from lunanexa_core.state_digest import state_digest
from tests.apps.snapshot_rows import admitted, begun, replayed, rows_of, served, settled
from tests.core.test_state_digest import full_state
from tests.examples import examples

HEAD = Head(sequence=7, epoch=3, journal="ab" * 32, ledger="cd" * 32)


def written(state: State) -> bytes:
    return encode_snapshot(Snapshot(head=HEAD, wall_ms=5, state=state))


def read(data: bytes) -> Snapshot:
    snapshot = decode_snapshot(data)
    assert isinstance(snapshot, Snapshot), snapshot
    return snapshot


def refused(data: bytes) -> str:
    snapshot = decode_snapshot(data)
    assert isinstance(snapshot, Unusable), "it was used"
    return snapshot.reason


def resealed(lines: list[bytes]) -> bytes:
    """A file of these lines with the seal that belongs to them."""
    body = b"".join(line + b"\n" for line in lines)
    return body + json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n"


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Workloads of both keys that are admitted, and some of them settled in another order."""
    admissions = [
        admitted(number, idempotent=draw(st.booleans()), limited=draw(st.booleans()))
        for number in range(draw(st.integers(0, 12)))
    ]
    ends = draw(st.permutations(admissions))[: draw(st.integers(0, len(admissions)))]
    outcomes = st.sampled_from((None, Outcome.CANCELLED_BY_CALLER, Outcome.QUEUE_FULL))
    return [*begun(), *admissions, *(settled(one, draw(outcomes)) for one in ends)]


@settings(max_examples=examples(40), deadline=None)
@given(histories(), st.data())
def test_a_replay_goes_on_from_a_snapshot_as_if_it_had_never_stopped(events: list[Event], data: st.DataObject) -> None:
    rows = rows_of(events)
    cut = data.draw(st.integers(0, len(rows)))
    part, whole = replayed(rows[:cut]), replayed(rows)
    snapshot = read(encode_snapshot(Snapshot(head=part.head, wall_ms=part.wall_ms, state=part.state)))
    assert snapshot.state == part.state
    assert state_digest(snapshot.state) == state_digest(part.state)
    on = Replay(state=snapshot.state, head=snapshot.head, wall_ms=snapshot.wall_ms)
    for row in rows[cut:]:
        on.feed(row)
    assert (on.state, on.head, on.wall_ms) == (whole.state, whole.head, whole.wall_ms)
    for field in attrs.fields(State):
        table = getattr(whole.state, field.name)
        if isinstance(table, dict):
            assert list(getattr(on.state, field.name)) == list(table), field.name


def test_all_tables_come_back() -> None:
    snapshot = read(written(full_state()))
    assert (snapshot.head, snapshot.wall_ms, snapshot.state) == (HEAD, 5, full_state())
    assert written(snapshot.state) == written(full_state())


@settings(max_examples=examples(60))
@given(st.data())
def test_one_other_byte_anywhere_is_seen(data: st.DataObject) -> None:
    good = written(full_state())
    at = data.draw(st.integers(0, len(good) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != good[at]))
    spoilt = good[:at] + bytes((other,)) + good[at + 1 :]
    found = decode_snapshot(spoilt)
    # Only spaces of the last line are no content: they may be others.
    assert isinstance(found, Unusable) or found == read(good)


@settings(max_examples=examples(40))
@given(st.data())
def test_a_cut_file_is_not_used(data: st.DataObject) -> None:
    good = written(full_state())
    cut = data.draw(st.integers(0, len(good) - 2))
    refused(good[:cut])


FOREIGN = (b"", b"\n", b"\0" * 4_096, b"{}\n", b"[" * 10_000, b"SQLite format 3\0", b"\xff\n\xff")


@pytest.mark.parametrize("data", FOREIGN)
def test_a_foreign_file_is_not_used(data: bytes) -> None:
    refused(data)


@pytest.mark.parametrize(
    ("member", "value", "said"),
    [
        ("schema", "lunanexa.snapshot.v2", "another version"),
        ("apply_version", APPLY_VERSION + 1, f"apply version {APPLY_VERSION + 1}"),
        ("apply_version", APPLY_VERSION - 1, f"apply version {APPLY_VERSION - 1}"),
        ("sequence", "7", "sequence"),
    ],
)
def test_another_version_is_not_used(member: str, value: object, said: str) -> None:
    first, *others, _ = written(full_state()).splitlines()
    assert said in refused(resealed([json.dumps({**json.loads(first), member: value}).encode(), *others]))


@pytest.mark.parametrize(
    "line",
    [
        b'["unheard_of",1]',
        b'["keys",1]',
        b'["epoch","k",1]',
        b'["epoch","1"]',
        b'["open_of_key","key_1","1"]',
        b'["keys","key_1",{}]',
        b'["open_of_key",1,1]',
        b"{}",
        b"",
        b"[1.5]",
        b"not json",
    ],
)
def test_an_entry_that_does_not_fit_is_not_used(line: bytes) -> None:
    """As of a version that forgot to raise its number."""
    *lines, _ = written(full_state()).splitlines()
    assert read(resealed(lines)).state == full_state()
    assert "does not fit" in refused(resealed([*lines, line]))


def test_a_served_history_fills_every_ordered_table() -> None:
    """Or the tests above would look at nothing."""
    state = replayed(rows_of(served(9))).state
    for name in ("open", "receipts", "places", "admitted", "bindings", "bound", "windows", "totals"):
        assert getattr(state, name), name
