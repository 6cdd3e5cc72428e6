"""Journals that an older version wrote replay as they did."""

from lunanexa_apps.controller.replay import Replay, replay
from lunanexa_apps.controller.rows import from_row
from lunanexa_core.canonical import JsonValue, strict_json
from lunanexa_core.events import DirectiveChanged
from lunanexa_core.ids import KeyId, TenantId
from lunanexa_core.journal import Chain, Head, make_row
from lunanexa_core.keys import ApiKey, Role
from lunanexa_core.southbound.documents import Directive
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.journal import JournalState, SimulatedJournal
from tests.core import builders
from tests.simulation.small import small_world

OLD_KEY: dict[str, JsonValue] = {
    "key": "key_local",
    "tenant": "local",
    "digest": "ab" * 32,
    "roles": ["inference"],
    "aliases": [],
    "concurrency": 2,
    "expires_wall_ms": None,
    "default_output_tokens": 1_024,
}


def test_a_key_without_limits_a_minute_is_not_limited() -> None:
    row = make_row(
        Head(),
        chain=Chain.JOURNAL,
        epoch=1,
        wall_ms=1_700_000_000_000,
        actor="kernel",
        action="key.created",
        version=1,
        target="key_local",
        body={"key": OLD_KEY},
    )
    replay = Replay()
    replay.feed(row)
    assert replay.state.keys == {
        KeyId("key_local"): ApiKey(
            key=KeyId("key_local"),
            tenant=TenantId("local"),
            digest="ab" * 32,
            roles=frozenset({Role.INFERENCE}),
            concurrency=2,
        )
    }
    (key,) = replay.state.keys.values()
    assert (key.requests_per_minute, key.tokens_per_minute, key.name) == (None, None, None)


def test_a_drain_without_a_time_has_that_of_the_policy() -> None:
    row = make_row(
        Head(),
        chain=Chain.JOURNAL,
        epoch=1,
        wall_ms=1_700_000_000_000,
        actor="operator",
        action="node.directive_changed",
        version=1,
        target="node-1",
        body={"node": "node-1", "directive": "drain", "reason": "fan"},
    )
    drained = DirectiveChanged(node=builders.NODE, directive=Directive.DRAIN, reason="fan", within_ms=None)
    assert from_row(row) == drained


async def test_a_restart_forgets_nothing_of_a_minute() -> None:
    disk = SimulatedDisk()
    async with small_world(disk) as small:
        windows = small.kernel.state.windows[builders.api_key().key]
        assert windows.requests.spent(small.kernel.now().wall_ms) == 2
    rebuilt = await replay(SimulatedJournal(disk.mount()))
    assert rebuilt.state.windows == {builders.api_key().key: windows}


async def test_workloads_replay_that_know_nothing_of_idempotency() -> None:
    """Rows without the members that came later say what was meant then."""
    disk = SimulatedDisk()
    async with small_world(disk):
        pass
    now = await replay(SimulatedJournal(disk.mount()))
    later = ("tenant", "classification", "retain_ms", "idempotency", "binding", "kept")
    old, cut = Replay(), 0
    for row in disk.state(JournalState).rows:
        record = strict_json(row.record)
        body = record["body"]
        for part in (body.get("request", {}), body.get("receipt", {}).get("settlement", {})):
            cut += sum(part.pop(name, part) is not part for name in later)
        same = {name: record[name] for name in ("epoch", "wall_ms", "actor", "action", "version", "target")}
        old.feed(make_row(old.head, chain=row.chain, body=body, **same))
    assert cut > len(later)
    assert (old.state.open, old.state.receipts) == (now.state.open, now.state.receipts)
    assert old.state.bindings == {}
