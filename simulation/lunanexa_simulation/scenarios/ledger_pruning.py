"""A ledger longer than it may be: it is pruned once no answer is kept for what would go; the controller dies between
the decision and the deletion; it is pruned again under traffic. Sums and idempotency keys go on, what is left proves
itself, and the archives join it."""

import gzip
from typing import Any, Final

import attrs
import trio

from lunanexa_apps.controller.retention import LOOK_S
from lunanexa_apps.controller.rows import to_row
from lunanexa_apps.journal_rows import row_of_document
from lunanexa_core.canonical import strict_json
from lunanexa_core.events import LedgerPruned, WorkloadAdmitted, WorkloadSettled
from lunanexa_core.ids import WorkloadId
from lunanexa_core.journal import Chain, Head, read_ledger_row
from lunanexa_core.outcomes import Outcome
from lunanexa_core.policy import Policy
from lunanexa_core.state import RECENT_RECEIPTS
from lunanexa_simulation.client import Ending
from lunanexa_simulation.faults import crash_controller
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import at_rest, changes, served, until_listed
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(engine_slots=8, policy=Policy(ledger_keep_receipts=RECENT_RECEIPTS))
HISTORY: Final = RECENT_RECEIPTS + 600
CALLERS: Final = 8
CALLS: Final = 8
KEPT: Final = {"idempotency-key": "asked-before-all-this", "x-lunanexa-retain-ms": "30000"}


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        await world.start()
        await world.deploy()
        await until_listed(world, "at first")
        asked = world.prompt("what will be forgotten")
        first = await world.client.chat(asked, headers=KEPT)
        world.check("served once", first.ending is Ending.WHOLE, first)
        crash_controller(world)
        _live_long(world)
        await world.start_controller()
        await until_listed(world, "after months")
        again = await world.client.chat(asked, headers=KEPT)
        same = again.replayed and (again.text, again.workload) == (first.text, first.workload)
        world.check("what is kept is given again", same, again)
        world.check("nothing leaves before that time is over", not changes(world, LedgerPruned))
        await _cut_between(world)
        await until_listed(world, "after the ledger was pruned")
        again = await world.client.chat(asked, headers=KEPT)
        gone = again.error == Outcome.IDEMPOTENCY_OUTPUT_GONE.value
        world.check("its idempotency key stands for it still", gone, again)
        status, _ = await world.operate("GET", f"/admin/v1/requests/{first.workload}")
        world.check("as is told", status == 404, status)
        await _under_traffic(world)
        await at_rest(world, "after all")
        await served(world, "after all")
        await _lists_end(world)
        _archives_join(world)
        await world.stop()


def _live_long(world: World) -> None:
    """The store as it is after months: many receipts more, as leaders wrote them."""
    state = world.controller.durable()
    admitted, receipt = changes(world, WorkloadAdmitted)[-1], world.receipts[-1]
    for number in range(HISTORY):
        workload = WorkloadId(f"wl_old{number}")
        request = attrs.evolve(admitted.request, workload=workload, idempotency=None, retain_ms=None)
        settlement = attrs.evolve(receipt.settlement, workload=workload, kept=False)
        for event in (
            attrs.evolve(admitted, request=request),
            WorkloadSettled(attrs.evolve(receipt, workload=workload, settlement=settlement)),
        ):
            wall_ms = state.rows[-1].wall_ms + number % 2
            row = to_row(state.head, event, epoch=state.head.epoch, wall_ms=wall_ms, actor="history")
            state.rows.append(row)
            state.head = state.head.after(row)
    world.trace(f"{HISTORY} receipts more")


def _outdated(world: World) -> list[int]:
    """Rows that may leave and are there."""
    until = max((pruned.until for pruned in changes(world, LedgerPruned)), default=0)
    return [row.sequence for row in world.sight.rows if row.chain is Chain.LEDGER and row.sequence <= until]


async def _cut_between(world: World) -> None:
    await world.until("a pruning is decided", lambda: bool(changes(world, LedgerPruned)), within_ms=2_000 * LOOK_S)
    await world.dither("the deletion", 20)
    left = _outdated(world)
    crash_controller(world, keep_unsynced=world.run.seed % 2 == 0)
    world.check("the controller died before all that may was deleted", len(left) > 0, left)
    await world.start_controller()
    await world.until("its successor finishes that", lambda: not _outdated(world), within_ms=10_000)
    world.check("and decides nothing anew", len(changes(world, LedgerPruned)) == 1)


async def _under_traffic(world: World) -> None:
    async def call(number: int) -> None:
        for one in range(CALLS):
            body = world.prompt(f"caller {number}, call {one}", stream=number % 2 == 0, max_tokens=4)
            answer = await world.client.chat(body)
            world.check("traffic is served meanwhile", answer.ending is Ending.WHOLE, answer)
            await world.dither(f"caller {number}", 6_000)

    async with trio.open_nursery() as nursery:
        for number in range(CALLERS):
            nursery.start_soon(call, number)
    await world.until("it is pruned again", lambda: len(changes(world, LedgerPruned)) > 1, within_ms=2_000 * LOOK_S)
    await world.until("and deleted again", lambda: not _outdated(world), within_ms=10_000)
    ledger = [row for row in world.sight.rows if row.chain is Chain.LEDGER]
    receipts = [row for row in ledger if row.action == "workload.settled"]
    world.check("what shall stay is there", len(receipts) >= RECENT_RECEIPTS, len(receipts))


async def _lists_end(world: World) -> None:
    """A list of all receipts comes to its end, with those that are there."""
    found, query = list[Any](), "?limit=500"
    for _ in range(RECENT_RECEIPTS):
        _, page = await world.operate("GET", f"/admin/v1/receipts{query}")
        found += page["data"]
        if page["next_cursor"] is None:
            break
        query = f"?limit=500&cursor={page['next_cursor']}"
    left = sum(row.action == "workload.settled" for row in world.sight.rows)
    world.check("every receipt that is left is listed", len(found) == left, (len(found), left))


def _archives_join(world: World) -> None:
    """Each file begins where the one before it ended, and the ledger where the last one did."""
    files, head = world.controller.archived().files, Head()
    for pruned in changes(world, LedgerPruned):
        world.check("each pruning has its file", pruned.archive is not None and pruned.archive.name in files, pruned)
        assert pruned.archive is not None
        begin, *rows, end = map(strict_json, gzip.decompress(files[pruned.archive.name]).splitlines())
        world.check("it goes on from the one before", begin["after"]["ledger"] == head.ledger, begin)
        for row in map(row_of_document, rows):
            world.check("each row stands in its place", isinstance(read_ledger_row(head, row), dict), row.sequence)
            head = head.after(row)
        ends = (end["end"]["ledger"], head.sequence)
        world.check("it ends where it was pruned", ends == (pruned.ledger, pruned.until), ends)
    first = next(row for row in world.sight.rows if row.chain is Chain.LEDGER)
    world.check("the ledger goes on from the last", first.previous == head.ledger, first.sequence)
