"""Pages of rows: whatever is asked for, following the cursors gives just the rows that fit, each once."""

from functools import cache
from itertools import pairwise

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.ledger import receipts_page
from lunanexa_apps.controller.rows import to_row
from lunanexa_apps.journal_pages import LOOKED_MAX, rows_page
from lunanexa_apps.journal_rows import record_of, row_document, row_of_document
from lunanexa_core import state as state_module
from lunanexa_core.admission.settle import settled_as
from lunanexa_core.events import Event, WorkloadAdmitted
from lunanexa_core.ids import TenantId
from lunanexa_core.journal import Chain, Head, Row, make_row
from lunanexa_core.journal_query import PageQuery, ReceiptQuery
from lunanexa_core.workload import LedgerReceipt, Settlement
from lunanexa_ports.errors import PortFault
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.journal import JournalState, SimulatedJournal
from tests.core import builders
from tests.replayed import check_replay

START_MS = builders.NOW.wall_ms


@cache
def journal_of(count: int) -> tuple[SimulatedJournal, list[Row]]:
    disk, head, rows = SimulatedDisk(), Head(), list[Row]()
    for number in range(1, count + 1):
        row = make_row(
            head,
            chain=Chain.LEDGER if number % 3 == 0 else Chain.JOURNAL,
            epoch=1,
            # Several rows of one instant, as of one batch.
            wall_ms=START_MS + number // 4 * 10,
            actor=f"actor_{number % 5}" if number % 211 else "rare",
            action=("key.created", "node.booted")[number % 2],
            version=1,
            target=f"target_{number % 7}",
            body=None,
        )
        rows.append(row)
        head = head.after(row)
    state = disk.state(JournalState)
    state.rows, state.head = list(rows), head
    return SimulatedJournal(disk.mount()), rows


def optional(*values: object) -> st.SearchStrategy[object]:
    return st.sampled_from((None, *values))


QUERIES = st.fixed_dictionaries(
    {
        "limit": st.sampled_from((1, 7, 255, 256, 257, 500)),
        "newest_first": st.booleans(),
        "chain": optional(*Chain),
        "action": optional("key.created", "nothing"),
        "target": optional("target_3", "target_9"),
        "actor": optional("actor_2", "rare", "nobody"),
        "after_wall_ms": optional(0, START_MS, START_MS + 995, START_MS + 1_000, START_MS + 10_000),
        "before_wall_ms": optional(0, START_MS + 10, START_MS + 1_001, START_MS + 10_000),
    }
)


def fits(query: PageQuery, row: Row) -> bool:
    return (
        query.chain in (None, row.chain)
        and query.action in (None, row.action)
        and query.target in (None, row.target)
        and query.actor in (None, record_of(row)["actor"])
        and (query.after_wall_ms is None or row.wall_ms >= query.after_wall_ms)
        and (query.before_wall_ms is None or row.wall_ms < query.before_wall_ms)
    )


@given(QUERIES)
async def test_pages_together_are_what_was_asked_for(asked: dict[str, object]) -> None:
    journal, rows = journal_of(700)
    query = PageQuery(**asked)  # type: ignore[arg-type]  # of just these fields
    wanted = [row for row in (reversed(rows) if query.newest_first else rows) if fits(query, row)]
    found: list[Row] = []
    while True:
        page = await rows_page(journal, query)
        assert len(page.rows) <= query.limit
        assert page.head == 700
        found += page.rows
        if page.cursor is None:
            break
        assert len(page.rows) == query.limit, "a page is only cut by its bounds"
        assert page.cursor != query.cursor
        query = attrs.evolve(query, cursor=page.cursor)
    assert found == wanted


@pytest.mark.slow
async def test_a_page_of_what_is_rare_is_bounded_and_goes_on() -> None:
    journal, rows = journal_of(LOOKED_MAX + 600)
    query, pages, found = PageQuery(limit=500, actor="rare"), 0, list[Row]()
    while True:
        page = await rows_page(journal, query)
        found, pages = [*found, *page.rows], pages + 1
        if page.cursor is None:
            break
        query = attrs.evolve(query, cursor=page.cursor)
    assert pages == 2
    assert found == [row for row in reversed(rows) if record_of(row)["actor"] == "rare"]


async def test_an_empty_journal_has_an_empty_page() -> None:
    journal, _ = journal_of(0)
    for newest_first in (False, True):
        page = await rows_page(journal, PageQuery(limit=5, newest_first=newest_first, after_wall_ms=4))
        assert (page.rows, page.cursor, page.head) == ((), None, 0)


def test_rows_as_documents_and_back() -> None:
    _, rows = journal_of(3)
    assert [row_of_document(row_document(row)) for row in rows] == rows
    with pytest.raises(PortFault, match="row 1 "):
        row_document(attrs.evolve(rows[0], record=b"\xff"))


def receipts(count: int) -> list[Event]:
    events: list[Event] = [*builders.serving_events()]
    for number in range(1, count + 1):
        asked, tenant = builders.request(number), TenantId(("even", "odd")[number % 2])
        key = builders.api_key().key
        admission = WorkloadAdmitted(request=asked, key=key, tenant=tenant, deployment=builders.DEPLOYMENT)
        events += [admission, settled_as(admission, Settlement(workload=asked.workload, outcome=None))]
    return events


@pytest.mark.slow
async def test_receipts_by_tenant_and_time_also_those_that_have_left_memory() -> None:
    count = state_module.RECENT_RECEIPTS + 300
    disk, head = SimulatedDisk(), Head()
    journal = disk.state(JournalState)
    for event in receipts(count):
        row = to_row(head, event, epoch=1, wall_ms=START_MS + head.sequence, actor="test")
        journal.rows.append(row)
        head = head.after(row)
    journal.head = head
    settled = {row.target: row for row in journal.rows if row.action == "workload.settled"}
    clock = SimulatedClock(mono_ms=builders.NOW.mono_ms, wall_ms=START_MS)
    store = SimulatedJournal(disk.mount())
    kernel = Kernel(store, store, clock, builders.POLICY, builders.SEAT)
    async with trio.open_nursery() as nursery:
        await nursery.start(kernel.run, builders.begin())
        nursery.cancel_scope.cancel("replayed")
    check_replay(kernel, disk)
    assert len(kernel.state.receipts) == state_module.RECENT_RECEIPTS

    async def pages(query: ReceiptQuery) -> list[LedgerReceipt]:
        found: list[LedgerReceipt] = []
        while True:
            page, cursor = await receipts_page(kernel, query)
            assert len(page) <= query.limit
            found += page
            if cursor is None:
                return found
            query = attrs.evolve(query, cursor=cursor)

    every = await pages(ReceiptQuery(limit=500))
    assert [one.receipt.workload for one in every] == [f"wl_{number}" for number in range(count, 0, -1)]
    assert all(newer.place.sequence > older.place.sequence for newer, older in pairwise(every))
    assert all(settled[one.receipt.workload].hash == one.place.hash for one in every)
    for limit in (37, 500):
        odd = await pages(ReceiptQuery(limit=limit, tenant=TenantId("odd")))
        assert odd == [one for one in every if one.receipt.tenant == "odd"]
    middle = settled["wl_200"].wall_ms
    since = await pages(ReceiptQuery(limit=500, after_wall_ms=middle))
    before = await pages(ReceiptQuery(limit=500, before_wall_ms=middle, tenant=TenantId("even")))
    assert [one.receipt.workload for one in since][-1] == "wl_200"
    assert len(since) == count - 199
    assert [one.receipt.workload for one in before] == [f"wl_{number}" for number in range(198, 0, -2)]
    assert await pages(ReceiptQuery(limit=5, tenant=TenantId("nobody"))) == []
    # Bytes that changed under the kernel are refused, not given out.
    spoiled = settled["wl_200"]
    assert b'"even"' in spoiled.record
    journal.rows[spoiled.sequence - 1] = attrs.evolve(spoiled, record=spoiled.record.replace(b'"even"', b'"ever"'))
    with pytest.raises(PortFault, match=f"damaged at sequence {spoiled.sequence}: restore a backup"):
        await pages(ReceiptQuery(limit=500))
