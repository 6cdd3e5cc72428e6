"""Real processes: their plan, and that each check of what a run left sees its own fault."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import jsonschema_rs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from lunanexa_apps.codec import encode
from lunanexa_apps.controller.rows import from_row, to_row
from lunanexa_core import commands
from lunanexa_core.events import Event, ReplicaChanged, WorkloadAdmitted
from lunanexa_core.ids import StartId
from lunanexa_core.journal import Head, Row, head_with
from lunanexa_core.state_digest import state_digest
from lunanexa_core.workload import Attempt, Settlement
from lunanexa_ports.children import SUPERVISOR_FD, ChildOrder
from lunanexa_simulation.children import SimulatedChild, SimulatedChildren, serve_until_terminated
from lunanexa_simulation.client import Answer, Ending
from lunanexa_simulation.documents import LogDocument, ProcessesDocument, simulation_schema
from lunanexa_simulation.real.after import books_faults
from lunanexa_simulation.real.books import Told, keep_books
from lunanexa_simulation.real.leaks import files_of, leak_in
from lunanexa_simulation.real.managed import Managed
from lunanexa_simulation.real.plan import Blow, Part, strikes_of
from lunanexa_simulation.real.promises import ProcessCrashed, Promises
from lunanexa_simulation.real.reaper import main as reap
from lunanexa_simulation.real.view import at_rest, lacking_nodes, lacking_replicas
from lunanexa_simulation.verdicts import LivenessBroken, SafetyBroken
from tests.core import builders
from tests.simulation.small import small_world

WHOLE = Answer(ending=Ending.WHOLE, workload=builders.request(1).workload)


# --- the plan ---


@given(seed=st.integers(), nodes=st.integers(1, 8), rounds=st.integers(0, 3))
def test_each_round_has_each_kind_of_strike(seed: int, nodes: int, rounds: int) -> None:
    strikes = strikes_of(seed, nodes=nodes, rounds=rounds)
    assert strikes == strikes_of(seed, nodes=nodes, rounds=rounds)
    assert [one.number for one in strikes] == list(range(1, 5 * rounds + 1))
    for turn in (strikes[first : first + 5] for first in range(0, len(strikes), 5)):
        alone = sorted(one.targets[0].part.value for one in turn if len(one.targets) == 1 and one.blow is Blow.KILL)
        assert alone == ["agent", "controller", "engine"]
        assert [one.hits(Part.AGENT) != () for one in turn if one.blow is Blow.PAUSE] == [True]
        assert [len(set(one.targets)) for one in turn if len(one.targets) > 1] == [2]
    assert all(0 <= target.node <= nodes for one in strikes for target in one.targets)
    assert all((target.node == 0) == (target.part is Part.CONTROLLER) for one in strikes for target in one.targets)


def test_a_round_more_changes_none_before_it() -> None:
    assert strikes_of(7, nodes=4, rounds=3)[:5] == strikes_of(7, nodes=4, rounds=1)
    assert strikes_of(7, nodes=4, rounds=1) != strikes_of(8, nodes=4, rounds=1)


# --- the books ---


@attrs.define
class Ledger:
    """What a run left, as it should be; a test spoils one thing of it."""

    rows: list[Row]
    head: Head
    told: list[Told]
    whole: list[Answer]
    starts: dict[str, int]
    requests: int = 2

    def faults(self) -> list[str]:
        books = keep_books(self.rows, self.head, self.told)
        status = {"usage": {"requests": self.requests}}
        found = books_faults(books, self.told, self.whole, self.starts, status)
        return [name for name, fault in found.items() if fault]

    def rewrite(self, change: Callable[[list[Event]], None]) -> None:
        """Other events in a good chain, as a controller with a fault would have written them."""
        events = [from_row(row) for row in self.rows]
        change(events)
        head = Head()
        rows = []
        for event in events:
            row = to_row(head, event, epoch=self.rows[-1].epoch, wall_ms=self.rows[-1].wall_ms, actor="test")
            head = head_with(head, row, None)
            rows.append(row)
        self.rows, self.head, self.told = rows, head, []


async def ledger() -> Ledger:
    async with small_world() as small:
        done = Settlement(
            workload=builders.request(2).workload, outcome=None, attempts=(Attempt(start=builders.START, status=200),)
        )
        await small.ask(commands.SettleWorkload(done))
        head = small.kernel.head
        return Ledger(
            rows=list(small.journal.rows),
            head=small.journal.head,
            told=[Told(head.sequence, state_digest(small.kernel.state))],
            whole=[WHOLE],
            starts={builders.NODE: 1},
        )


async def test_what_a_good_run_leaves_has_no_fault() -> None:
    assert (await ledger()).faults() == []


def row_lost(left: Ledger) -> None:
    del left.rows[-2]


def row_changed(left: Ledger) -> None:
    left.rows[3] = attrs.evolve(left.rows[3], record=left.rows[3].record.replace(b"1", b"2", 1))


def last_row_lost(left: Ledger) -> None:
    """A receipt that was durable and is not any more."""
    left.rows.pop()


def other_state(left: Ledger) -> None:
    left.told = [attrs.evolve(left.told[0], digest="0" * 64)]


def state_beyond(left: Ledger) -> None:
    left.told = [attrs.evolve(left.told[0], sequence=left.told[0].sequence + 1)]


def never_settled(left: Ledger) -> None:
    left.rewrite(lambda events: events.__delitem__(-1))
    left.requests = 1


def answered_and_not_booked(left: Ledger) -> None:
    left.whole.append(Answer(ending=Ending.WHOLE, workload="wl_9"))


def counted_twice(left: Ledger) -> None:
    left.requests = 3


def started_twice(left: Ledger) -> None:
    def change(events: list[Event]) -> None:
        ready = [event for event in events if isinstance(event, ReplicaChanged)][-1]
        events.append(attrs.evolve(ready, report=attrs.evolve(ready.report, start=StartId("st_9"))))

    left.rewrite(change)


def not_started_again(left: Ledger) -> None:
    left.starts[builders.NODE] = 2


def ran_twice(left: Ledger) -> None:
    def change(events: list[Event]) -> None:
        for place, event in enumerate(events):
            if isinstance(event, WorkloadAdmitted):
                events[place] = attrs.evolve(event, request=attrs.evolve(event.request, idempotency="0" * 64))

    left.rewrite(change)


CHAINS = "the hash chains of journal and ledger verify"
STATES = "the rows make each state that the controller said it had"
RECEIPTS = "each admitted workload has one receipt"
STARTS = "each engine was started once, and once more for each kill"
BOOKED = "what was answered whole is booked so"
COUNTED = "the status counts each receipt once"


@pytest.mark.parametrize(
    ("spoil", "seen"),
    [
        (row_lost, {CHAINS, STATES}),
        (row_changed, {CHAINS, STATES}),
        (last_row_lost, {CHAINS, STATES, RECEIPTS, COUNTED}),
        (other_state, {STATES}),
        (state_beyond, {STATES}),
        (never_settled, {RECEIPTS}),
        (answered_and_not_booked, {BOOKED}),
        (counted_twice, {COUNTED}),
        (started_twice, {STARTS}),
        (not_started_again, {STARTS}),
        (ran_twice, {"nothing ran twice for one idempotency key"}),
    ],
)
async def test_each_fault_in_the_books_is_seen(spoil: Callable[[Ledger], None], seen: set[str]) -> None:
    left = await ledger()
    spoil(left)
    assert seen <= set(left.faults())


# --- what was written and shown ---


def test_a_secret_is_found_where_it_may_not_stand(tmp_path: Path) -> None:
    (tmp_path / "controller" / "secrets").mkdir(parents=True)
    (tmp_path / "controller" / "secrets" / "api_key").write_text("lnx_hidden")
    (tmp_path / "controller" / "store").write_bytes(b"\x00rows\x00")
    assert leak_in(files_of(tmp_path), {"the API key": "lnx_hidden"}) is None
    (tmp_path / "controller" / "store").write_bytes(b"\x00lnx_hidden\x00")
    assert leak_in(files_of(tmp_path), {"the API key": "lnx_hidden"}) == "the API key stands in controller/store"


@pytest.mark.parametrize("keep", [True, False])
def test_what_is_left_of_a_run_that_was_killed_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    folder, waits = tmp_path / "run", [sys.executable, "-c", "import sys; sys.stdin.read()"]
    folder.mkdir()
    reading, writing = os.pipe()
    monkeypatch.setenv(SUPERVISOR_FD, str(reading))
    os.close(writing)
    pipe = subprocess.PIPE
    with (
        subprocess.Popen([*waits, "lunanexa-engine", str(folder)], stdin=pipe) as ours,
        subprocess.Popen([*waits, "somebody's", str(folder)], stdin=pipe) as somebodys,
    ):
        reap(folder, keep=keep)
        assert ours.wait(10) == -signal.SIGKILL
        assert somebodys.poll() is None
        somebodys.kill()
    os.close(reading)
    assert folder.exists() == keep


def status(**changes: Any) -> dict[str, Any]:
    replica = {
        **{"node": "loop-1", "state": "ready", "start": "st_1", "pid": 7, "running": 0, "waiting": 0},
        **{"routable": True, "not_routable": None},
    }
    deployment = {"queue": {"waiting": 0, "running": 0}, "replicas": [{**replica, **changes}]}
    nodes = [{"node": "loop-1", "state": "ready"}]
    return {"recovering": [], "store_ok": True, "nodes": nodes, "deployments": [deployment]}


def test_a_fleet_that_is_whole_and_at_rest_lacks_nothing() -> None:
    assert lacking_nodes(status(), ["loop-1"]) is None
    assert lacking_replicas(status(), ["loop-1"]) is None
    assert at_rest(status(), {"open": []}) is None


def test_what_a_fleet_lacks_is_told() -> None:
    assert "loop-2" in str(lacking_nodes(status(), ["loop-1", "loop-2"]))
    assert "lost_tail" in str(lacking_nodes({**status(), "recovering": ["lost_tail"]}, ["loop-1"]))
    assert "not placed" in str(lacking_replicas(status(), ["loop-2"]))
    assert "lease" in str(lacking_replicas(status(routable=False, not_routable="lease"), ["loop-1"]))
    assert "running on loop-1" in str(at_rest(status(running=1), {"open": []}))
    assert "waiting on loop-1" in str(at_rest(status(waiting=None), {"open": []}))
    assert "open" in str(at_rest(status(), {"open": [{}]}))


# --- processes and promises ---


async def crash(_: SimulatedChild) -> int:
    return 3


async def test_a_process_that_ends_untold_is_a_crash(tmp_path: Path) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(ProcessCrashed, match="agent 1 ended by itself, with status 3")):
        async with trio.open_nursery() as nursery:
            children = SimulatedChildren(nursery, {"agent 1": crash})
            await Managed(order("agent 1"), tmp_path / "log", children, nursery).start()


async def test_a_process_that_is_killed_or_stopped_is_none(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        children = SimulatedChildren(nursery, {"controller": serve_until_terminated})
        managed = Managed(order("controller"), tmp_path / "log", children, nursery)
        for _ in range(2):
            await managed.start()
            await managed.kill()
            assert managed.pid is None
        await managed.start()
        assert await managed.stop(1.0) == 0
        assert [child.order.output for child in children.started] == [str(tmp_path / "log")] * 3


def order(name: str) -> ChildOrder:
    return ChildOrder(name=name, argv=(name,), environment={})


async def test_promises_are_noted_as_they_end(autojump_clock: MockClock) -> None:
    promises = Promises()
    answers = iter(["not yet", "not yet", None])

    async def lacking() -> str | None:
        return next(answers, "it never is")

    promises.check("it stands", None)
    await promises.until("it comes", lacking, within_s=1)
    promises.check("asked often", None, often=True)
    with pytest.raises(LivenessBroken, match="it comes again: not within 5 s: it never is"):
        await promises.until("it comes again", lacking, within_s=5)
    with pytest.raises(SafetyBroken, match="the second: wrong"):
        promises.check_all({"the first": None, "the second": "wrong", "the third": None})
    kept = {one.name: one.held for one in promises.kept}
    first = {"it stands": True, "it comes": True, "it comes again": False}
    assert kept == first | {"the first": True, "the second": False, "the third": True}
    assert promises.kept[-1].at_ms == promises.now_ms >= 5_000
    assert autojump_clock.current_time() < 6, "nothing waited longer than it had to"


def test_its_document_is_in_the_schema() -> None:
    document = ProcessesDocument(
        seed=1,
        commit=None,
        nodes=4,
        rounds=1,
        verdict="crashed",
        exit_code=3,
        problem="agent 1 ended by itself, with status 3",
        detail=None,
        wall_ms=9,
        checks=(),
        happened={},
        mishaps=(),
        folder=None,
        logs=(LogDocument(process="agent 1", lines=("one",)),),
    )
    told = json.loads(encode(document))
    jsonschema_rs.validator_for(simulation_schema()).validate(told)
    assert (told["digest"], told["hardware_performance_validated"]) == (None, False)
