"""What callers see of their own workloads, and how they cancel one, in each phase of its life."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from lunanexa_apps.codec import structure
from lunanexa_apps.controller.workloads import KernelWorkloads
from lunanexa_core.canonical import JsonValue
from lunanexa_core.commands import AdmitWorkload, CreateKey, OpenSession
from lunanexa_core.contract.workloads import CapabilitiesDocument, WorkloadDocument, WorkloadPage
from lunanexa_core.events import KeyCreated
from lunanexa_core.ids import KeyId, SessionId
from lunanexa_core.journal_query import RowQuery
from lunanexa_core.keys import Role, secret_digest
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.state import RECENT_RECEIPTS
from lunanexa_core.workload import Settlement, WorkloadState
from lunanexa_ports.dispatch import Admitted
from tests.apps.gateway_fleet import DONE, USAGE, Fleet, Part, Script, ScriptedEngine, Sink, delta, fleet
from tests.core.builders import SECRET, api_key, request

OTHER = "lnx_" + "o" * 20 + "0123456789abcdefghijklm"
OPERATOR = "lnx_" + "p" * 20 + "0123456789abcdefghijklm"
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Once"}], "max_tokens": 6}
STREAM = CHAT | {"stream": True}
STUCK = Script(parts=(Part(delta("a")), Part(delta("b"))), stuck=True)
SILENT = Script(before_s=10_000)
REFUSES = Script(status=400, content_type="application/json", parts=(Part(b'{"error":{"message":"no"}}'),))
WHOLE = Script(parts=(Part(delta("a")), Part(delta("", "stop")), Part(USAGE), Part(DONE)))


def plane(world: Fleet) -> KernelWorkloads:
    return KernelWorkloads(world.kernel, world.dispatch)


async def make_key(world: Fleet, name: str, secret: str, role: Role = Role.INFERENCE) -> None:
    key = api_key(key=KeyId(name), digest=secret_digest(secret), roles=frozenset({role}))
    assert isinstance(await world.kernel.ask(CreateKey(key), "test"), KeyCreated)


def document(found: JsonValue | Refusal) -> WorkloadDocument:
    assert not isinstance(found, Refusal), found
    return structure(WorkloadDocument, found, closed=True)


async def only(world: Fleet) -> WorkloadDocument:
    """The one workload that there is, from the list, which says the same as the workload itself."""
    page = await plane(world).workloads(SECRET, 10, None)
    assert not isinstance(page, Refusal)
    (listed,) = structure(WorkloadPage, page, closed=True).data
    found = document(await plane(world).workload(SECRET, listed.workload_id))
    assert found == listed
    return found


async def ledger(world: Fleet) -> list[str]:
    """The workloads with a receipt, as the ledger tells."""
    rows = await world.kernel.reader.page(RowQuery(target="wl_1", limit=10))
    return [row.action for row in rows]


@pytest.mark.parametrize("phase", [WorkloadState.RUNNING, WorkloadState.STREAMING, WorkloadState.QUEUED])
async def test_a_live_workload_is_seen_and_cancelled(autojump_clock: MockClock, phase: WorkloadState) -> None:
    engine = ScriptedEngine(STUCK if phase is WorkloadState.STREAMING else SILENT, WHOLE)
    async with fleet(autojump_clock, engine, slots=1) as world, trio.open_nursery() as nursery:
        if phase is WorkloadState.QUEUED:
            before = await world.dispatch.admit(request(1))
            assert isinstance(before, Admitted)
        sink = Sink()
        nursery.start_soon(world.gateway.infer, world.call(STREAM), sink)
        with trio.fail_after(5):
            while True:
                page = await plane(world).workloads(SECRET, 1, None)
                assert isinstance(page, dict)
                if page["data"] and page["data"][0]["state"] == phase.value:
                    break
                await trio.sleep(0.1)
        seen = document(page["data"][0])
        assert seen.age_ms is not None
        assert seen.deadline_ms == 600_000 - seen.age_ms
        assert seen.queue_position == (0 if phase is WorkloadState.QUEUED else None)
        assert (seen.error, seen.usage, seen.receipt) == (None, None, None)
        assert not sink.ended
        began_s = trio.current_time()
        ended = document(await plane(world).cancel(SECRET, seen.workload_id))
        assert trio.current_time() - began_s < 2
        assert ended.state is WorkloadState.CANCELLED
        assert ended.error is not None
        assert ended.error.code is Outcome.CANCELLED_BY_CALLER
        assert ended.receipt is not None
        assert ended.receipt.sequence == world.kernel.state.places[ended.workload_id].sequence
        await sink.until(lambda sink: sink.ended)
        told = sink.error() if sink.refusal is None else {"code": sink.refusal.outcome.value}
        assert told["code"] == "cancelled_by_caller"
        settlement = world.kernel.state.receipts[ended.workload_id].settlement
        assert settlement.detail == "cancelled"
        assert settlement.usage.output_tokens == (2 if phase is WorkloadState.STREAMING else 0)
        assert engine.in_progress == 0
        # Once more: the same receipt.
        assert document(await plane(world).cancel(SECRET, seen.workload_id)) == ended
        assert document(await plane(world).workload(SECRET, seen.workload_id)) == ended


async def test_a_workload_whose_gateway_is_gone_is_settled_by_the_cancellation(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        other = SessionId("ses_2")
        await world.kernel.ask(OpenSession(other), "test")
        await world.kernel.ask(AdmitWorkload(request(1, session=other)), "test")
        # No tick comes between: the lapse of the session is what the cancellation itself finds.
        world.kernel.observed.sessions[other] = world.kernel.now().mono_ms
        ended = document(await plane(world).cancel(SECRET, "wl_1"))
        assert ended.state is WorkloadState.CANCELLED
        assert world.receipt().settlement.detail == "gateway_lost"
        assert world.at_rest()
        assert await ledger(world) == ["workload.admitted", "workload.settled"]


async def test_an_engine_that_does_not_let_go_does_not_hold_the_answer(autojump_clock: MockClock) -> None:
    """Nobody watches this workload: the answer comes after two seconds, without a receipt."""
    async with fleet(autojump_clock) as world:
        assert isinstance(await world.dispatch.admit(request(1)), Admitted)
        began_s = trio.current_time()
        found = document(await plane(world).cancel(SECRET, "wl_1"))
        assert trio.current_time() - began_s == pytest.approx(2)
        assert (found.state, found.receipt) == (WorkloadState.RUNNING, None)


async def test_what_is_anothers_is_not_there(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        await make_key(world, "key_2", OTHER)
        await make_key(world, "key_3", OPERATOR, Role.OPERATOR)
        assert isinstance(await world.dispatch.admit(request(1)), Admitted)
        for ended in (False, True):
            for name in ("wl_1", "wl_2"):
                for ask in (plane(world).workload, plane(world).cancel):
                    refusal = await ask(OTHER, name)
                    assert isinstance(refusal, Refusal)
                    assert refusal.outcome is Outcome.NOT_FOUND
            assert await plane(world).workloads(OTHER, 10, None) == {"data": [], "next_cursor": None}
            assert ("wl_1" in world.kernel.state.open) is not ended
            await world.dispatch.settle(Settlement(workload=request(1).workload, outcome=None))
        for secret, outcome in (
            (None, Outcome.INVALID_API_KEY),
            ("no", Outcome.INVALID_API_KEY),
            (OPERATOR, Outcome.PERMISSION_DENIED),
        ):
            for refused in (
                await plane(world).workload(secret, "wl_1"),
                await plane(world).workloads(secret, 10, None),
                await plane(world).cancel(secret, "wl_1"),
                await plane(world).capabilities(secret),
            ):
                assert isinstance(refused, Refusal)
                assert refused.outcome is outcome


async def test_an_engine_s_own_refusal_is_told_as_one(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(REFUSES)) as world:
        assert (await world.ask(STREAM)).status == 400
        found = await only(world)
        assert found.state is WorkloadState.FAILED
        assert found.error is not None
        assert found.error.code is Outcome.INVALID_REQUEST
        assert "400" in found.error.message


async def test_pages_are_stable_while_workloads_end(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        for number in range(1, 8):
            await world.kernel.ask(AdmitWorkload(request(number)), "test")
        seen: list[str] = []
        cursor: str | None = None
        for ends in ("wl_6", "wl_1", "wl_7", "wl_2"):
            page = await plane(world).workloads(SECRET, 2, cursor)
            assert isinstance(page, dict)
            seen += [one["workload_id"] for one in page["data"]]
            cursor = page["next_cursor"]
            await world.dispatch.settle(Settlement(workload=request(int(ends[3:])).workload, outcome=None))
            await world.kernel.ask(AdmitWorkload(request(int(ends[3:]) + 100)), "test")
        assert seen == [f"wl_{number}" for number in (7, 6, 5, 4, 3, 2, 1)]
        assert cursor is None
        for limit, bad in ((0, None), (501, None), (5, "x"), (5, "-1"), (5, "9" * 17)):
            refused = await plane(world).workloads(SECRET, limit, bad)
            assert isinstance(refused, Refusal)
            assert refused.outcome is Outcome.INVALID_REQUEST


@pytest.mark.slow
async def test_receipts_that_have_left_memory_are_read_from_the_ledger(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, policy=Policy(queue_requests_max=5_000)) as world:
        await make_key(world, "key_2", OTHER)
        for number in range(1, RECENT_RECEIPTS + 2):
            await world.kernel.ask(AdmitWorkload(request(number)), "test")
            await world.dispatch.settle(Settlement(workload=request(number).workload, outcome=None, total_ms=number))
        assert request(1).workload not in world.kernel.state.receipts
        assert request(1).workload not in world.kernel.state.admitted
        found = document(await plane(world).workload(SECRET, "wl_1"))
        assert found.state is WorkloadState.SUCCEEDED
        assert found.timing is not None
        assert found.timing.completed_ms == 1
        rows = await world.kernel.reader.page(RowQuery(target="wl_1", limit=5))
        assert found.receipt is not None
        assert (found.receipt.hash, found.receipt.sequence) == (rows[-1].hash, rows[-1].sequence)
        assert document(await plane(world).cancel(SECRET, "wl_1")) == found
        assert isinstance(await plane(world).workload(OTHER, "wl_1"), Refusal)
        # A name that the journal uses for something else is no workload.
        assert isinstance(await plane(world).workload(SECRET, "kernel"), Refusal)


async def test_capabilities_name_what_this_key_can_call(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        found = structure(CapabilitiesDocument, await plane(world).capabilities(SECRET), closed=True)  # type: ignore[arg-type]  # a refusal would fail here
        assert found.contract == "lunanexa.v1"
        served = {
            one.capability: {dialect.dialect.value: dialect.models for dialect in one.dialects}
            for one in found.capabilities
        }
        assert served["TextGenerate"]["chat/completions"] == ("tiny",)
        assert served["ImageGenerate"] == {}
        assert found.retention.kinds == ("Ephemeral", "RetainFor")
        assert found.limits.concurrency is None
        world.kernel.observed.draining = True
        drained = structure(CapabilitiesDocument, await plane(world).capabilities(SECRET), closed=True)  # type: ignore[arg-type]  # a refusal would fail here
        assert all(not dialect.models for one in drained.capabilities for dialect in one.dialects)
