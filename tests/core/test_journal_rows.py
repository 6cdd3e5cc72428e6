"""The rule that chains rows: what may stand where, and that a change anywhere shows."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.canonical import JsonValue, canonical_json
from lunanexa_core.journal import (
    Chain,
    ChainFault,
    Head,
    PrunePoint,
    Row,
    chain_hash,
    check_row,
    head_after,
    head_with,
    make_row,
    read_ledger_row,
)


def row_after(head: Head, chain: Chain = Chain.JOURNAL, *, epoch: int = 1, body: JsonValue = None) -> Row:
    return make_row(
        head,
        chain=chain,
        epoch=epoch,
        wall_ms=1_800_000_000_000,
        actor="operator",
        action="key_created",
        version=1,
        target="key_1",
        body=body,
    )


def rewritten(row: Row, record: bytes) -> Row:
    """``row`` with another record, and a hash that fits it."""
    return attrs.evolve(row, record=record, hash=chain_hash(row.previous, record))


@given(
    st.lists(st.tuples(st.sampled_from(Chain), st.integers(0, 2), st.dictionaries(st.text("ab"), st.integers(0, 9))))
)
def test_made_rows_stand_one_after_another(plan: list[tuple[Chain, int, dict[str, JsonValue]]]) -> None:
    head = Head()
    epoch = 1
    for chain, step, body in plan:
        epoch += step
        row = row_after(head, chain, epoch=epoch, body=body)
        assert check_row(head, row) is None
        assert head_after(head, epoch, [row]) == head.after(row)
        head = head.after(row)
    assert head.sequence == len(plan)


def test_chains_share_the_sequence_and_not_the_hash() -> None:
    first = row_after(Head(), Chain.JOURNAL)
    second = row_after(Head().after(first), Chain.LEDGER)
    head = Head().after(first).after(second)
    assert (head.sequence, head.journal, head.ledger) == (2, first.hash, second.hash)
    assert second.previous == Head().ledger


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"sequence": 3}, ChainFault.SEQUENCE),
        ({"sequence": 1}, ChainFault.SEQUENCE),
        ({"epoch": 0}, ChainFault.EPOCH),
        ({"previous": "f" * 64}, ChainFault.PREVIOUS),
        ({"chain": Chain.LEDGER}, ChainFault.PREVIOUS),
        ({"hash": "f" * 64}, ChainFault.HASH),
        ({"record": b"{}"}, ChainFault.HASH),
        ({"epoch": 2}, ChainFault.RECORD),
        ({"wall_ms": 0}, ChainFault.RECORD),
        ({"action": "key_revoked"}, ChainFault.RECORD),
        ({"target": "key_2"}, ChainFault.RECORD),
        ({"target": "\ud800"}, ChainFault.RECORD),
    ],
)
def test_a_changed_row_is_out_of_place(change: dict[str, Any], fault: ChainFault) -> None:
    head = Head().after(row_after(Head()))
    row = row_after(head)
    assert check_row(head, row) is None
    assert check_row(head, attrs.evolve(row, **change)) is fault


def test_a_row_of_another_chain_head_is_out_of_place() -> None:
    first = row_after(Head(), Chain.LEDGER)
    row = row_after(Head().after(first), Chain.LEDGER)
    assert check_row(attrs.evolve(Head().after(first), ledger="0" * 64), row) is ChainFault.PREVIOUS


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: record + b" ",
        lambda record: b" " + record,
        lambda record: record.replace(b'"epoch":1', b'"epoch":true'),
        lambda record: record.replace(b'"epoch":1,', b""),
        lambda record: record.replace(b'"action"', b'"ACTION"'),
        lambda record: record.replace(b"null", b"1.5"),
        lambda record: record.replace(b"null", b'"\\u0041"'),
        lambda record: b"[" + record + b"]",
        lambda _: b"not JSON",
        lambda record: record[:-1] + b',"body":null}',
    ],
)
def test_a_record_must_be_canonical_and_say_what_its_head_fields_say(spoil: Callable[[bytes], bytes]) -> None:
    row = row_after(Head())
    spoilt = spoil(row.record)
    assert spoilt != row.record
    assert check_row(Head(), rewritten(row, spoilt)) is ChainFault.RECORD


def test_the_record_holds_all_that_is_audited() -> None:
    row = row_after(Head(), body={"tenant": "t"})
    assert row.record == canonical_json(
        {
            "sequence": 1,
            "chain": "journal",
            "epoch": 1,
            "wall_ms": 1_800_000_000_000,
            "actor": "operator",
            "action": "key_created",
            "version": 1,
            "target": "key_1",
            "body": {"tenant": "t"},
        }
    )


def test_hash_is_fixed_for_ever() -> None:
    """Stored chains stand on this: it must never change."""
    assert chain_hash("0" * 64, b"{}") == "fb1634c4e6cd4b1f1afe3ce2d6ef080f7ac5d1f357d723ad4dfca782733b62db"


def test_head_after_refuses_what_does_not_follow() -> None:
    row = row_after(Head())
    with pytest.raises(AssertionError):
        head_after(Head(), 1, [])
    with pytest.raises(AssertionError):
        head_after(Head(), 2, [row])
    with pytest.raises(AssertionError):
        head_after(Head(), 1, [row, row])
    with pytest.raises(AssertionError):
        head_after(attrs.evolve(Head(), journal="f" * 64), 1, [row])


def pruned_rows() -> tuple[list[Row], PrunePoint]:
    """Rows of both chains; the last one says that the ledger is pruned up to the sixth."""
    rows, head = list[Row](), Head()
    for chain in [Chain.JOURNAL, Chain.LEDGER, Chain.LEDGER, Chain.JOURNAL, Chain.LEDGER, Chain.LEDGER, Chain.LEDGER]:
        rows.append(row_after(head, chain))
        head = head.after(rows[-1])
    rows.append(row_after(head, body={"until": 6, "ledger": rows[5].hash}))
    return rows, PrunePoint(until=6, ledger=rows[5].hash, sequence=8, hash=rows[7].hash)


def walked(rows: list[Row], point: PrunePoint | None) -> Head | ChainFault:
    head = Head()
    for row in rows:
        fault = check_row(head, row, point)
        if fault is not None:
            return fault
        head = head_with(head, row, point)
    return head


@pytest.mark.parametrize("dropped", range(5))
def test_up_to_the_prune_point_the_ledger_may_be_missing(dropped: int) -> None:
    """Also in part: the oldest rows leave first."""
    rows, point = pruned_rows()
    whole = walked(rows, None)
    gone = [row for row in rows if row.chain is Chain.LEDGER][:dropped]
    left = [row for row in rows if row not in gone]
    assert walked(left, point) == whole
    if dropped:
        assert walked(left, None) is ChainFault.SEQUENCE


@pytest.mark.parametrize(
    ("left", "fault"),
    [
        ((1, 4, 6, 8), ChainFault.SEQUENCE),  # The seventh is after the prune point.
        ((1, 7, 8), ChainFault.PREVIOUS),  # The fourth is the journal's.
        ((4, 7, 8), ChainFault.PREVIOUS),
        ((1, 3, 4, 6, 7, 8), ChainFault.PREVIOUS),  # The fifth is missing between others.
        ((1, 3, 4, 5, 7, 8), ChainFault.PRUNED),  # The sixth left before the fifth.
        ((1, 4, 4, 7, 8), ChainFault.SEQUENCE),
    ],
)
def test_nothing_else_may_be_missing(left: tuple[int, ...], fault: ChainFault) -> None:
    rows, point = pruned_rows()
    assert walked([rows[sequence - 1] for sequence in left], point) is fault


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"until": 3}, ChainFault.SEQUENCE),
        ({"until": 5}, ChainFault.PRUNED),
        ({"until": 8}, ChainFault.PRUNING),
        ({"ledger": "f" * 64}, ChainFault.PRUNED),
        ({"hash": "f" * 64}, ChainFault.PRUNING),
        ({"sequence": 7}, ChainFault.PRUNING),
    ],
)
def test_a_prune_point_is_held_to_its_row(change: dict[str, Any], fault: ChainFault) -> None:
    rows, point = pruned_rows()
    left = [rows[0], *rows[3:]]
    assert isinstance(walked(left, point), Head)
    assert walked(left, attrs.evolve(point, **change)) in (fault, ChainFault.PREVIOUS)


def test_a_stretch_of_the_ledger_stands_alone() -> None:
    rows, _ = pruned_rows()
    head = Head()
    for row in rows:
        taken = read_ledger_row(head, row)
        assert isinstance(taken, dict) is (row.chain is Chain.LEDGER)
        head = head.after(row) if row.chain is Chain.LEDGER else head
    assert read_ledger_row(Head(sequence=2, ledger=rows[1].hash), rows[4]) is ChainFault.PREVIOUS
    assert read_ledger_row(Head(sequence=2, ledger=rows[1].hash), rows[1]) is ChainFault.SEQUENCE
