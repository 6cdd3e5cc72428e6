"""Forms of an earlier version: they say less, and mean the same."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from lunanexa_apps.codec import decode, encode, structure
from lunanexa_apps.controller.replay import Replay
from lunanexa_apps.controller.snapshot import Snapshot, Unusable, decode_snapshot, encode_snapshot
from lunanexa_core.canonical import strict_json
from lunanexa_core.journal import Head
from lunanexa_core.kernel.apply import APPLY_VERSION
from lunanexa_core.southbound.heartbeat import Heartbeat
from lunanexa_simulation.older import (
    RELEASED,
    UNSAID,
    OlderSigner,
    older,
    older_rows,
    older_snapshot,
    released_records,
    released_rows,
)
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.signing import SimulatedKeyring, SimulatedVerifier
from tests.core import builders
from tests.simulation.small import small_world

DUMPS = sorted((Path(__file__).parents[1] / "fixtures" / "stores").glob("sqlite-journal-*.sql"))


def test_what_can_be_left_out_is_and_nothing_else() -> None:
    told = builders.heartbeat(1, builders.report())
    whole = strict_json(encode(told))
    thinned = older(Heartbeat, whole)
    assert structure(Heartbeat, thinned) == told
    assert whole == strict_json(encode(told)), "what was given is as it was"
    assert "available_mib" not in thinned
    assert {"node", "boot", "sequence", "replicas"} <= thinned.keys()
    assert thinned["replicas"][0].keys() < whole["replicas"][0].keys()


async def test_older_rows_are_a_chain_that_makes_the_same_state() -> None:
    async with small_world() as small:
        rows, heads = older_rows(small.journal.rows)
        replay = Replay()
        for row in rows:
            replay.feed(row)
        places = small.kernel.state.places
        assert replay.state.places.keys() == places.keys()
        assert replay.state.places != places, "the chain is another"
        places.update(replay.state.places)
        assert replay.state == small.kernel.state
        assert heads[rows[-1].sequence] == replay.head
        assert sum(len(row.record) for row in rows) < sum(len(row.record) for row in small.journal.rows)


@pytest.mark.parametrize("dump", DUMPS, ids=[dump.stem for dump in DUMPS])
def test_what_a_released_version_wrote_is_that_to_the_byte(dump: Path) -> None:
    schema = int(dump.stem.rpartition("-")[2])
    assert schema in RELEASED, f"write its records to released/journal-{schema}.jsonl, one a line"
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(dump.read_bytes().decode())
        stored = connection.execute("SELECT record FROM row ORDER BY sequence").fetchall()
    assert released_records(schema) == [record for (record,) in stored]
    rows, head = released_rows(schema)
    replay = Replay()
    for row in rows:
        replay.feed(row)
    assert (replay.head, len(replay.state.receipts), len(replay.state.open)) == (head, 2, 2)


async def test_an_older_snapshot_is_whole_and_of_another_version() -> None:
    async with small_world() as small:
        head = small.kernel.head
        data = encode_snapshot(Snapshot(head=head, wall_ms=1, state=small.kernel.state))
        unusable = decode_snapshot(older_snapshot(data, Head(sequence=head.sequence, journal="ab" * 32)))
        assert unusable == Unusable(f"it has apply version {APPLY_VERSION - 1}, this program {APPLY_VERSION}")


def test_an_older_agent_signs_what_it_knew_to_say() -> None:
    keyring = SimulatedKeyring()
    key = keyring.new_key(Streams(1).stream("key"))
    signer, told = OlderSigner(key), builders.heartbeat(1, builders.report())
    signed = signer.sign(encode(told))
    assert SimulatedVerifier(keyring).verify(signed, {key.key_id: key.public_key})
    assert not strict_json(signed.payload).keys() & set(UNSAID)
    assert decode(Heartbeat, signed.payload).replicas == told.replicas
