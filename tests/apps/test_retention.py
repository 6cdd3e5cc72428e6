"""Retention: what is over leaves the ledger, what must go on of it does, and a crash between leaves both whole."""

import gzip
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import cache
from io import BytesIO

import attrs
import pytest
import trio
from trio.testing import MockClock

from lunanexa_apps.cli.journal_file import export_rows, verify_file
from lunanexa_apps.cli.journal_page import verifier_page
from lunanexa_apps.cli.journal_replay import replay_source
from lunanexa_apps.cli.journal_source import StoreSource, TooEarly
from lunanexa_apps.cli.journal_verify import verify_source
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.ledger import find_receipt, receipts_page
from lunanexa_apps.controller.replay import PrunedBeyond, Replay, newest_pruning, rebuild, replay
from lunanexa_apps.controller.retention import LOOK_S, RetentionPorts, run_retention
from lunanexa_apps.controller.rows import PRUNED_ACTION, from_row, to_row
from lunanexa_core.admission.settle import settled_as
from lunanexa_core.commands import PruneLedger
from lunanexa_core.events import Event, KeyRevoked, LedgerPruned, WorkloadAdmitted
from lunanexa_core.ids import HolderId, WorkloadId
from lunanexa_core.journal import Chain, Head, Row, chain_hash
from lunanexa_core.journal_query import ReceiptQuery
from lunanexa_core.leadership import Seat
from lunanexa_core.ledger_retention import prune_limit
from lunanexa_core.outcomes import Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.state import RECENT_RECEIPTS
from lunanexa_core.state_digest import state_digest
from lunanexa_core.workload import Settlement
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.disk import Mount, SimulatedDisk
from lunanexa_simulation.journal import JournalState, SimulatedJournal
from lunanexa_simulation.ledger_archive import ArchiveFolder, SimulatedLedgerArchive
from lunanexa_simulation.replays import SimulatedReplays
from lunanexa_simulation.workers import SimulatedWorkers
from tests.core import builders
from tests.replayed import check_replay

pytestmark = pytest.mark.thorough

START_MS = builders.NOW.wall_ms
BEGIN = builders.begin(keys=(builders.api_key(),))
POLICY = Policy(ledger_keep_receipts=RECENT_RECEIPTS)
SERVED = RECENT_RECEIPTS + 200
LATE = WorkloadId("wl_5")


def history(count: int) -> list[Event]:
    """``count`` receipts, some of idempotency keys; the fifth workload is settled late."""
    events = [*builders.serving_events()]
    late: list[Event] = []
    for number in range(1, count + 1):
        asked = builders.request(number, idempotency=f"key {number}" if number % 50 == 0 else None, binding="body")
        key, deployment = builders.api_key(), builders.DEPLOYMENT
        admission = WorkloadAdmitted(request=asked, key=key.key, tenant=key.tenant, deployment=deployment)
        events.append(admission)
        ended = settled_as(admission, Settlement(workload=asked.workload, outcome=None))
        (late if number == 5 else events).append(ended)
        if number == 90:
            events += late
    return events


def rows_of(events: list[Event]) -> list[Row]:
    rows, head = list[Row](), Head()
    for event in events:
        rows.append(to_row(head, event, epoch=1, wall_ms=START_MS + 10 * head.sequence, actor="test"))
        head = head.after(rows[-1])
    return rows


@cache
def usual_rows() -> list[Row]:
    return rows_of(history(SERVED))


async def fill(store: SimulatedJournal, rows: list[Row]) -> None:
    async def each() -> AsyncIterator[Row]:
        for row in rows:
            yield row

    await store.fill(each())


@attrs.define
class Store:
    """A store with a history, and processes on it."""

    disk: SimulatedDisk
    clock: MockClock

    @property
    def rows(self) -> list[Row]:
        return self.disk.state(JournalState).rows

    @property
    def ledger(self) -> list[Row]:
        return [row for row in self.rows if row.chain is Chain.LEDGER]

    @property
    def prunings(self) -> list[LedgerPruned]:
        return [event for row in self.rows if isinstance(event := from_row(row), LedgerPruned)]

    @property
    def files(self) -> dict[str, bytes]:
        return self.disk.state(ArchiveFolder).files

    def reader(self) -> SimulatedJournal:
        return SimulatedJournal(self.disk.mount())

    @asynccontextmanager
    async def kernel(
        self, policy: Policy = POLICY, *, seat: Seat = builders.SEAT, journal: SimulatedJournal | None = None
    ) -> AsyncIterator[Kernel]:
        wall_ms = START_MS + 10 * 2 * SERVED + round(self.clock.current_time() * 1_000)
        clock = SimulatedClock(mono_ms=builders.NOW.mono_ms, wall_ms=wall_ms)
        journal = self.reader() if journal is None else journal
        kernel = Kernel(journal, journal, clock, policy, seat)
        async with trio.open_nursery() as nursery:
            await nursery.start(kernel.run, BEGIN)
            yield kernel
            nursery.cancel_scope.cancel("the test is over")
        check_replay(kernel, self.disk)

    @asynccontextmanager
    async def retention(
        self, kernel: Kernel, *, mount: Mount | None = None, archived: bool = True, drops: int = 1 << 30
    ) -> AsyncIterator[None]:
        mount = self.disk.mount() if mount is None else mount
        ports = RetentionPorts(
            upkeep=Dropping(mount, drops),
            replays=SimulatedReplays(mount, mount),
            workers=SimulatedWorkers(),
            archive=SimulatedLedgerArchive(mount) if archived else None,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(run_retention, kernel, ports)
            yield
            nursery.cancel_scope.cancel("the test is over")

    def serve(self, number: int) -> None:
        """So many workloads more."""
        state = self.disk.state(JournalState)
        served = 2 * SERVED
        for event in history(served + number)[-2 * number :]:
            row = to_row(state.head, event, epoch=state.head.epoch, wall_ms=state.rows[-1].wall_ms, actor="test")
            state.rows.append(row)
            state.head = state.head.after(row)

    async def prune(self, policy: Policy = POLICY, *, archived: bool = True) -> None:
        """What a leader does within some minutes."""
        async with self.kernel(policy) as kernel, self.retention(kernel, archived=archived):
            await trio.sleep(3 * LOOK_S)


class Dropping(SimulatedJournal):
    """Drops in small steps, and fails after so many of them."""

    def __init__(self, mount: Mount, drops: int) -> None:
        super().__init__(mount)
        self.drops = drops

    async def drop_ledger(self, until: int, limit: int, *, after: int = 0) -> int:
        dropped = 0
        for start in range(after, until, 32):
            if self.drops == 0:
                raise PortUnavailable("no more")
            self.drops -= 1
            dropped += await super().drop_ledger(min(start + 32, until), limit, after=start)
        return dropped


async def stored(clock: MockClock, rows: list[Row] | None = None) -> Store:
    store = Store(SimulatedDisk(), clock)
    await fill(store.reader(), usual_rows() if rows is None else rows)
    return store


async def check_whole(store: Store, kernel: Kernel | None = None) -> Replay:
    """Every way to read the store says that it is whole, and gives one state."""
    source = StoreSource(store.reader())
    verifier = await verify_source(source)
    assert verifier.problem is None
    exported = BytesIO()
    assert (await export_rows(source, exported, None)).problem is None
    exported.seek(0)
    again = verify_file(exported)
    assert (again.problem, again.head) == (None, verifier.head)
    replayed = await rebuild(store.reader())
    by_command = await replay_source(source, None, "0.1.0")
    assert (by_command.problem, by_command.digest) == (None, state_digest(replayed.state))
    if kernel is not None:
        assert replayed.state == kernel.state
        assert list(replayed.state.receipts) == list(kernel.state.receipts)
        assert list(replayed.state.bindings.items()) == list(kernel.state.bindings.items())
    return replayed


@pytest.mark.slow
async def test_what_is_over_leaves_and_its_sums_go_on(autojump_clock: MockClock) -> None:
    store = await stored(autojump_clock)
    whole = await replay(store.reader())
    async with store.kernel() as kernel, store.retention(kernel):
        await trio.sleep(2 * LOOK_S)
        (pruning,) = store.prunings
        gone = whole.state.totals[builders.api_key().tenant].requests - RECENT_RECEIPTS
        assert pruning.receipts == gone
        assert store.ledger[0].sequence > pruning.until
        assert pruning.count + len(store.ledger) == 2 * SERVED
        await check_whole(store, kernel)
        assert kernel.state.totals == whole.state.totals
        assert kernel.state.bindings == whole.state.bindings
    async with store.kernel() as kernel:
        assert kernel.state == (await rebuild(store.reader())).state


async def test_receipts_that_left_are_gone_honestly(autojump_clock: MockClock) -> None:
    store = await stored(autojump_clock)
    async with store.kernel() as kernel:
        assert await find_receipt(kernel, WorkloadId("wl_1")) is not None
        async with store.retention(kernel):
            await trio.sleep(LOOK_S)
        assert await find_receipt(kernel, WorkloadId("wl_1")) is None
        asked = ReceiptQuery(limit=500, cursor=kernel.state.places[next(iter(kernel.state.receipts))].sequence)
        assert await receipts_page(kernel, asked) == ([], None)


@pytest.mark.slow
async def test_archives_join_the_ledger(autojump_clock: MockClock) -> None:
    store = await stored(autojump_clock)
    await store.prune()
    store.serve(300)
    await store.prune()
    await check_whole(store)
    last = Head()
    assert len(store.files) == len(store.prunings) == 2
    for pruning in store.prunings:
        assert pruning.archive is not None
        verifier = verify_file(BytesIO(store.files[pruning.archive.name]))
        assert verifier.problem is None
        assert verifier.after is not None
        assert (verifier.after.sequence, verifier.after.ledger) == (last.sequence, last.ledger)
        assert (verifier.head.sequence, verifier.head.ledger) == (pruning.until, pruning.ledger)
        last = verifier.head
    assert store.ledger[0].previous == last.ledger


@pytest.mark.slow
async def test_nothing_is_archived_where_nobody_wants_it(autojump_clock: MockClock) -> None:
    store = await stored(autojump_clock)
    await store.prune(archived=False)
    assert [pruning.archive for pruning in store.prunings] == [None]
    assert not store.files
    await check_whole(store)


@pytest.mark.slow
async def test_old_rows_leave_for_their_age(autojump_clock: MockClock) -> None:
    store = await stored(autojump_clock)
    kept_s = 20 * LOOK_S
    kept = Policy(ledger_keep_receipts=0, ledger_keep_ms=kept_s * 1_000)
    async with store.kernel(kept) as kernel, store.retention(kernel):
        await trio.sleep(kept_s - LOOK_S)
        assert not store.prunings
        limit = prune_limit(kernel.state)
        await trio.sleep(3 * LOOK_S)
        (pruning,) = store.prunings
        assert pruning.until == limit
        await check_whole(store, kernel)
    assert len([row for row in store.ledger if row.action == "workload.settled"]) >= RECENT_RECEIPTS


@pytest.mark.slow
async def test_a_drop_that_was_cut_is_finished_by_the_next_leader(autojump_clock: MockClock) -> None:
    """Whatever was dropped of what may be, the store is whole."""
    store = await stored(autojump_clock)
    for steps in (0, 1, 5):
        async with store.kernel() as kernel:
            async with store.retention(kernel, drops=steps):
                await trio.sleep(1)
            assert len(store.prunings) == 1
            assert store.ledger[0].sequence <= store.prunings[0].until
            await check_whole(store, kernel)
    await store.prune()
    assert len(store.prunings) == 1
    assert store.ledger[0].sequence > store.prunings[0].until
    await check_whole(store)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["full", "unavailable"])
async def test_a_disk_that_fails_is_tried_again(autojump_clock: MockClock, fault: str) -> None:
    store = await stored(autojump_clock)
    other = SimulatedDisk()
    other.faults = attrs.evolve(other.faults, **{fault: True})
    async with store.kernel() as kernel:
        ports = RetentionPorts(
            upkeep=store.reader(),
            replays=SimulatedReplays(store.disk.mount(), store.disk.mount()),
            workers=SimulatedWorkers(),
            archive=SimulatedLedgerArchive(other.mount()),
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(run_retention, kernel, ports)
            await trio.sleep(3 * LOOK_S)
            assert not store.prunings
            assert len(store.ledger) == 2 * SERVED
            other.faults = attrs.evolve(other.faults, full=False, unavailable=False)
            await trio.sleep(2 * LOOK_S)
            assert len(store.prunings) == 1
            nursery.cancel_scope.cancel("the test is over")


async def test_a_replay_that_sums_up_to_something_else_prunes_nothing(autojump_clock: MockClock) -> None:
    store = await stored(autojump_clock)

    class Wrong(SimulatedReplays):
        async def carry(self, until: int) -> bytes:
            return (await super().carry(until)).replace(b'"requests":200', b'"requests":201')

    async with store.kernel() as kernel:
        ports = RetentionPorts(
            upkeep=store.reader(),
            replays=Wrong(store.disk.mount(), store.disk.mount()),
            workers=SimulatedWorkers(),
            archive=None,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(run_retention, kernel, ports)
            await trio.sleep(LOOK_S / 2)
            nursery.cancel_scope.cancel("the test is over")
    assert not store.prunings
    assert len(store.ledger) == 2 * SERVED


@pytest.mark.slow
async def test_nothing_leaves_a_store_that_may_be_the_wrong_one(autojump_clock: MockClock) -> None:
    store = await stored(autojump_clock)
    async with store.kernel() as kernel:
        kernel.state.recovery = ()
        async with store.retention(kernel):
            await trio.sleep(2 * LOOK_S)
            assert not store.prunings
            kernel.state.recovery = None
            await trio.sleep(2 * LOOK_S)
            assert store.prunings


@pytest.mark.slow
async def test_who_lags_behind_a_pruning_begins_anew(autojump_clock: MockClock) -> None:
    store = await stored(autojump_clock)
    follower = Replay()
    async with aclosing(store.reader().read(limit=30)) as rows:
        async for row in rows:
            follower.feed(row)
    await store.prune()
    next_row = next(row for row in store.rows if row.sequence > follower.head.sequence)
    with pytest.raises(PrunedBeyond):
        follower.feed(next_row)
    await check_whole(store)


class Pruned(SimulatedJournal):
    """Is pruned by somebody else while it is read."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.disk.mount())
        self.store = store
        self.reads = 0

    async def read(self, after: int = 0, limit: int | None = None) -> AsyncGenerator[Row, None]:
        self.reads += 1
        async with aclosing(super().read(after, limit)) as rows:
            async for row in rows:
                yield row
                if row.sequence == 20 and self.reads == 1:
                    await self.store.prune()


@pytest.mark.slow
async def test_a_pruning_meanwhile_makes_a_replay_begin_anew(autojump_clock: MockClock) -> None:
    store = await stored(autojump_clock)
    reader = Pruned(store)
    rebuilt = await rebuild(reader)
    assert reader.reads == 2
    assert rebuilt.state == (await check_whole(store)).state


@pytest.mark.slow
async def test_what_else_is_missing_is_damage(autojump_clock: MockClock) -> None:
    store = await stored(autojump_clock)
    await store.prune()
    rows = list(store.rows)
    until = store.prunings[0].until
    after = next(place for place, row in enumerate(rows) if row.sequence > until)
    for gone in (0, after - 1, after, len(rows) - 2):
        store.rows[:] = [*rows[:gone], *rows[gone + 1 :]]
        with pytest.raises(PortFault):
            await rebuild(store.reader())
        verifier = await verify_source(StoreSource(store.reader()))
        assert verifier.problem is not None


@pytest.mark.slow
@pytest.mark.parametrize("change", ["until", "ledger", "carry"])
async def test_a_pruning_that_was_tampered_with_is_found(autojump_clock: MockClock, change: str) -> None:
    """Also by somebody who wrote its hash anew: the next row of the journal stands on the old one."""
    store = await stored(autojump_clock)
    await store.prune()
    async with store.kernel():
        pass  # A row of the journal stands after it.
    place = next(place for place, row in enumerate(store.rows) if row.action == PRUNED_ACTION)
    row = store.rows[place]
    pruning = from_row(row)
    assert isinstance(pruning, LedgerPruned)
    old, new = {
        "until": (f'"until":{pruning.until}', f'"until":{pruning.until - 1}'),
        "ledger": (pruning.ledger, "f" * 64),
        "carry": ('\\"requests\\":200', '\\"requests\\":201'),
    }[change]
    record = row.record.decode().replace(old, new).encode()
    assert record != row.record
    store.rows[place] = attrs.evolve(row, record=record, hash=chain_hash(row.previous, record))
    with pytest.raises(PortFault):
        await rebuild(store.reader())
    assert (await verify_source(StoreSource(store.reader()))).problem is not None


async def test_an_export_of_a_pruned_store_is_held_to_its_first_line(autojump_clock: MockClock) -> None:
    store = await stored(autojump_clock)
    await store.prune()
    exported = BytesIO()
    await export_rows(StoreSource(store.reader()), exported, None)
    text = exported.getvalue().decode()
    (pruning,) = store.prunings
    until, page = pruning.until, verifier_page(verify_file(BytesIO(exported.getvalue())))
    assert f"the ledger up to {until:,} ({pruning.count:,} rows)" in page
    assert pruning.archive is not None
    assert pruning.archive.name in page
    for old, new in ((f'"until":{until}', f'"until":{until - 1}'), (pruning.ledger, "f" * 64)):
        assert verify_file(BytesIO(text.replace(old, new, 1).encode())).problem is not None
    with pytest.raises(TooEarly, match="pruned"):
        await export_rows(StoreSource(store.reader()), BytesIO(), store.rows[-1].sequence - 5)
    archive = gzip.decompress(next(iter(store.files.values())))
    for spoilt in (
        archive.replace(b"wl_7", b"wl_8"),
        archive[:-20],
        archive.replace(b'"sequence":0', b'"sequence":40'),
    ):
        assert verify_file(BytesIO(spoilt)).problem is not None
    assert verify_file(BytesIO(gzip.compress(archive)[:-30])).problem is not None


@pytest.mark.slow
async def test_states_before_a_pruning_are_gone(autojump_clock: MockClock) -> None:
    store = await stored(autojump_clock)
    await store.prune()
    (pruning,) = store.prunings
    assert (await newest_pruning(store.reader())) is not None
    with pytest.raises(PortFault, match="pruned"):
        await replay(store.reader(), until=pruning.until)
    with pytest.raises(TooEarly, match="pruned"):
        await replay_source(StoreSource(store.reader()), pruning.until + 10, "0.1.0")


@pytest.mark.slow
async def test_a_key_revoked_before_the_prune_point_stays_so(autojump_clock: MockClock) -> None:
    events = history(SERVED)
    events.insert(60, KeyRevoked(builders.api_key().key))
    store = await stored(autojump_clock, rows_of(events))
    async with store.kernel() as kernel, store.retention(kernel):
        await trio.sleep(LOOK_S)
        await check_whole(store, kernel)
        answer = await kernel.ask(PruneLedger(store.prunings[0]), "test")
        assert isinstance(answer, Refusal)


@pytest.mark.slow
async def test_a_standby_that_lagged_behind_a_pruning_follows_on(autojump_clock: MockClock) -> None:
    store = await stored(autojump_clock, rows_of(history(100)))
    leader, standby = builders.SEAT, Seat(HolderId("another"), "another:8400")
    assert await store.reader().claim(leader.holder, leader.address, seen=await store.reader().look()) is not None
    mount = store.disk.mount()
    async with store.kernel(seat=standby, journal=SimulatedJournal(mount)) as follower:
        assert not follower.leading
        behind = follower.head.sequence
        mount.cut = True
        store.serve(SERVED)
        async with store.kernel(seat=leader) as kernel:
            async with store.retention(kernel):
                await trio.sleep(1)
            assert store.ledger[0].sequence > store.prunings[0].until > behind
            mount.cut = False
            while follower.head != kernel.head:
                await trio.sleep(0.1)
            assert not follower.leading
            assert follower.state == kernel.state
