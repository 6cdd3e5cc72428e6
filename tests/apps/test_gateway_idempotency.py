"""Idempotency keys and kept answers through the real gateway and kernel: nothing runs twice for one key."""

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from lunanexa_adapters.asgi.errors import error_answer
from lunanexa_apps.codec import structure
from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_core.admission.idempotency import output_gone
from lunanexa_core.binding import bound_key
from lunanexa_core.commands import AdmitWorkload, OpenSession
from lunanexa_core.contract.data_plane import ErrorDocument
from lunanexa_core.ids import KeyId, RequestId, SessionId, TenantId, WorkloadId
from lunanexa_core.keys import secret_digest
from lunanexa_core.outcomes import Outcome, Refusal, error_document
from lunanexa_core.policy import Policy
from lunanexa_core.terms import Terms
from lunanexa_core.workload import DataClass, Settlement, WorkloadState
from lunanexa_ports.gateway import WorkloadCall
from lunanexa_simulation.answers import AnswersState
from lunanexa_simulation.disk import SimulatedDisk
from tests.apps.gateway_fleet import (
    DONE,
    USAGE,
    Fleet,
    Part,
    Script,
    ScriptedEngine,
    Sink,
    delta,
    fleet,
)
from tests.apps.test_gateway_submission import Frames
from tests.core.builders import SECRET, api_key, request

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Once"}], "max_tokens": 6}
STREAM = CHAT | {"stream": True}
KEY = {"idempotency-key": "order-17"}
KEPT = KEY | {"x-lunanexa-retain-ms": "60000"}
ANSWER = json.dumps({"id": "c1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}).encode()
WHOLE = Script(content_type="application/json", parts=(Part(ANSWER),))
EVENTS = Script(parts=(Part(delta("a")), Part(delta("b"), wait_s=40), Part(delta("", "stop")), Part(USAGE), Part(DONE)))
REFUSED = Script(status=400, content_type="application/json", parts=(Part(b'{"error":{"message":"no"}}'),))
BUSY = Script(status=429, content_type="application/json", parts=(Part(b'{"error":{"message":"busy"}}'),))
BROKEN = Script(status=500, content_type="application/json", parts=(Part(b"{}"),))
SILENT = Script(before_s=10_000)


def outcome(sink: Sink) -> Outcome:
    assert sink.refusal is not None
    return sink.refusal.outcome


def gone(sink: Sink) -> dict[str, Any]:
    """The receipt in the refusal of what can't be given again."""
    assert sink.refusal is not None
    assert outcome(sink) is Outcome.IDEMPOTENCY_OUTPUT_GONE
    document = error_document(sink.refusal, "req_1")
    structure(ErrorDocument, document, closed=True)
    receipt = sink.refusal.receipt
    assert isinstance(receipt, dict)
    return receipt


def stored(disk: SimulatedDisk) -> int:
    return len(disk.state(AnswersState).answers)


async def settle_all(world: Fleet) -> None:
    for workload in list(world.kernel.state.open):
        await world.dispatch.settle(Settlement(workload=workload, outcome=None))


@pytest.mark.parametrize(
    ("body", "script"), [(CHAT, WHOLE), (STREAM, EVENTS), (CHAT, REFUSED)], ids=["unary", "stream", "4xx"]
)
async def test_a_kept_answer_is_given_again(autojump_clock: MockClock, body: dict[str, Any], script: Script) -> None:
    """To the byte, without our comments, under the first one's workload and receipt."""
    engine, answers, policy = ScriptedEngine(script), SimulatedDisk(), Policy(idempotency_ms=240_000)
    async with fleet(autojump_clock, engine, answers=answers, policy=policy) as world:
        first = await world.ask(body, headers=KEPT)
        for _ in range(2):
            again = await world.ask(body, headers=KEPT)
            assert again.headers["x-lunanexa-replayed"] == "true"
            assert "x-lunanexa-replayed" not in first.headers
            same = ("content-type", "x-lunanexa-workload-id")
            assert {name: again.headers[name] for name in same} == {name: first.headers[name] for name in same}
            assert (again.status, again.body) == (first.status, b"".join(w for w in first.writes if w[:1] != b":"))
        assert any(write[:1] == b":" for write in first.writes) is (script is EVENTS)
        assert len(engine.bodies) == 1
        assert world.receipt().settlement.kept
        assert world.metrics.value("lunanexa_requests_total", {"route": "chat/completions", "outcome": "replayed"}) == 2
        # When its time is over, it is gone, and its receipt is not.
        await trio.sleep(60)
        receipt = gone(await world.ask(body, headers=KEPT))
        assert receipt["workload_id"] == first.headers["x-lunanexa-workload-id"]
        assert receipt["sequence"] == world.kernel.state.places[world.receipt().workload].sequence
        await trio.sleep(60)
        assert stored(answers) == 0
        # And when the key is free again, the request is made again.
        engine.scripts.append(script)
        await trio.sleep(policy.idempotency_ms / 1000)
        assert (await world.ask(body, headers=KEPT)).status == first.status
        assert len(engine.bodies) == 2


async def test_without_retention_nothing_is_kept(autojump_clock: MockClock) -> None:
    engine, answers = ScriptedEngine(WHOLE, EVENTS, WHOLE), SimulatedDisk()
    async with fleet(autojump_clock, engine, answers=answers) as world:
        for body in (CHAT, STREAM):
            key = {"idempotency-key": str(len(engine.bodies))}
            assert (await world.ask(body, headers=key)).status == 200
            again = await world.ask(body, headers=key)
            assert gone(again)["state"] == "Succeeded"
            assert again.refusal is not None
            assert not again.refusal.row.retry
        # Nor for nobody: without a key there is none who could ask for it.
        assert (await world.ask(CHAT, headers={"x-lunanexa-retain-ms": "1000"})).status == 200
        assert len(engine.bodies) == 3
        assert stored(answers) == 0
        assert not any(receipt.settlement.kept for receipt in world.receipts())


async def test_while_the_first_is_in_progress(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine(SILENT)
    async with fleet(autojump_clock, engine) as world, trio.open_nursery() as nursery:
        nursery.start_soon(world.gateway.infer, world.call(CHAT, headers=KEY), Sink())
        await engine.asked.wait()
        (workload,) = world.kernel.state.open
        again = await world.ask(CHAT, headers=KEY)
        assert outcome(again) is Outcome.WORKLOAD_ACTIVE
        assert again.refusal is not None
        assert workload in again.refusal.message
        told = dict(error_answer(again.refusal, "req_1").headers)
        assert (told[b"retry-after"], told[b"x-should-retry"]) == (b"1", b"false")
        for other in (CHAT | {"max_tokens": 7}, STREAM):
            assert outcome(await world.ask(other, headers=KEY)) is Outcome.IDEMPOTENCY_MISMATCH
        # The first one's client leaves: what ran is not run again, and who asks is told how it ended.
        nursery.cancel_scope.cancel()
    assert len(engine.bodies) == 1


async def test_an_answer_to_data_of_a_higher_class_is_not_for_a_key_of_a_lower_one(autojump_clock: MockClock) -> None:
    low = api_key(key=KeyId("key_2"), digest=secret_digest("u" * 40), data_class_max=DataClass.INTERNAL)
    engine = ScriptedEngine(WHOLE)
    async with fleet(autojump_clock, engine, more_keys=(low,)) as world:
        restricted = KEPT | {"x-lunanexa-data-class": "Confidential"}
        assert (await world.ask(CHAT, headers=restricted)).status == 200
        assert outcome(await world.ask(CHAT, headers=restricted, api_key="u" * 40)) is Outcome.PERMISSION_DENIED
        assert outcome(await world.ask(CHAT, headers=KEPT, api_key="u" * 40)) is Outcome.IDEMPOTENCY_MISMATCH


async def test_a_ceiling_counts_all_answers_together(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine(WHOLE)
    async with fleet(autojump_clock, engine) as world:
        for limit, ceiling, refused in ((6, 17, True), (None, 17, True), (6, 18, False)):
            payload = {"messages": CHAT["messages"], "n": 3} | ({} if limit is None else {"max_tokens": limit})
            frames = await submit(world, {"payload": payload, "resource_ceiling": {"output_units": ceiling}})
            assert (frames.refusal is not None) is refused
            assert frames.refusal is None or frames.refusal.param == "resource_ceiling.output_units"
        assert len(engine.bodies) == 1


async def test_a_departure_binds_the_key_to_how_it_ended(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine(SILENT)
    async with fleet(autojump_clock, engine) as world:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.gateway.infer, world.call(CHAT, headers=KEPT), Sink())
            await engine.asked.wait()
            nursery.cancel_scope.cancel()
        assert gone(await world.ask(CHAT, headers=KEPT))["state"] == "Cancelled"
        assert len(engine.bodies) == 1


@pytest.mark.parametrize("script", [BROKEN, BUSY], ids=["failed", "busy"])
async def test_a_failure_that_a_retry_may_mend_frees_the_key(autojump_clock: MockClock, script: Script) -> None:
    engine, answers = ScriptedEngine(script, WHOLE), SimulatedDisk()
    async with fleet(autojump_clock, engine, answers=answers) as world:
        assert (await world.ask(CHAT, headers=KEPT)).status in (429, 502)
        assert (world.kernel.state.bindings, stored(answers)) == ({}, 0)
        assert (await world.ask(CHAT | {"max_tokens": 7}, headers=KEPT)).status == 200
        (binding,) = world.kernel.state.bindings.values()
        assert binding.kept


async def test_a_store_that_fails_costs_the_repetition_alone(autojump_clock: MockClock) -> None:
    """Whether it is full, gone, slow or damaged, and however the answer goes out."""
    for body, script in ((CHAT, WHOLE), (STREAM, EVENTS)):
        engine, disk = ScriptedEngine(*[script] * 5), SimulatedDisk()
        async with fleet(autojump_clock, engine, answers=disk, answers_bytes=1_500) as world:
            faults: tuple[dict[str, Any], ...] = (
                {"unavailable": True},
                {"full": True},
                {"corrupt": True},
                {"delay_ms": 30_000},
            )
            for number, fault in enumerate(faults):
                headers = KEPT | {"idempotency-key": f"key-{number}"}
                for name, value in fault.items():
                    setattr(disk.faults, name, value)
                assert (await world.ask(body, headers=headers)).status == 200
                assert gone(await world.ask(body, headers=headers))["state"] == "Succeeded"
                disk.faults.delay_ms = 0
                disk.faults.unavailable = disk.faults.full = disk.faults.corrupt = False
            await trio.sleep(60)
            disk.state(AnswersState).answers.clear()
            # Kept, and not to be read again.
            headers = KEPT | {"idempotency-key": "key-9"}
            assert (await world.ask(body, headers=headers)).status == 200
            assert stored(disk) == 1
            disk.faults.unavailable = True
            assert outcome(await world.ask(body, headers=headers)) is Outcome.STORE_UNAVAILABLE
            disk.faults.unavailable, disk.faults.delay_ms = False, 30_000
            began_s = trio.current_time()
            assert outcome(await world.ask(body, headers=headers)) is Outcome.STORE_UNAVAILABLE
            assert trio.current_time() - began_s < 5
            disk.faults.delay_ms = 0
            await trio.sleep(40)
            assert (await world.ask(body, headers=headers)).status == 200
            assert len(engine.bodies) == 5


async def test_what_does_not_fit_is_told_and_not_kept(autojump_clock: MockClock) -> None:
    engine, disk = ScriptedEngine(WHOLE, EVENTS), SimulatedDisk()
    settings = GatewaySettings(answer_bytes_max=len(ANSWER))
    async with fleet(autojump_clock, engine, answers=disk, answers_bytes=1_000, settings=settings) as world:
        for body in (CHAT, STREAM):
            headers = KEPT | {"idempotency-key": f"key-{len(engine.bodies)}"}
            assert (await world.ask(body, headers=headers)).status == 200
            gone(await world.ask(body, headers=headers))
        assert stored(disk) == 0


async def test_retention_beyond_the_offer_is_refused(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, policy=Policy(retain_ms_max=0)) as world:
        assert outcome(await world.ask(CHAT, headers=KEPT)) is Outcome.RETENTION_UNAVAILABLE
        assert (await world.ask(CHAT, headers=KEY)).status == 200
        capture = {"retention": {"kind": "EvaluationCapture", "consent": "receipt-1"}}
        frames = await submit(world, {"data_policy": capture})
        assert frames.refusal is not None
        assert (frames.refusal.outcome, frames.response) == (Outcome.RETENTION_UNAVAILABLE, None)
        assert not world.kernel.state.open


async def submit(world: Fleet, changes: dict[str, Any], *, stream: bool = False) -> Frames:
    frames = Frames()
    payload = {name: value for name, value in CHAT.items() if name != "model"}
    envelope = {"capability": "TextGenerate", "model": "tiny", "payload": payload, **changes}
    call = WorkloadCall(
        request=RequestId("req_1"),
        api_key=SECRET,
        terms=Terms(),
        body=json.dumps(envelope).encode(),
        stream=stream,
        received_mono_ms=world.clock.now().mono_ms,
    )
    await world.gateway.submit(call, frames)
    return frames


@pytest.mark.parametrize("stream", [False, True])
async def test_submissions_are_given_again_too(autojump_clock: MockClock, stream: bool) -> None:
    engine = ScriptedEngine(EVENTS if stream else WHOLE)
    async with fleet(autojump_clock, engine) as world:
        retention = {"data_policy": {"retention": {"kind": "RetainFor", "ms": 60_000}}, "idempotency_key": "k"}
        first = await submit(world, retention, stream=stream)
        again = await submit(world, retention, stream=stream)
        assert first.accepted_as is not None
        assert again.accepted_as is not None
        assert (first.accepted_as.replayed, again.accepted_as.replayed) == (False, True)
        assert again.accepted_as.workload == first.accepted_as.workload
        assert again.events == first.events
        assert again.document == first.document
        assert len(engine.bodies) == 1
        # The answer to one way of asking is none to the other.
        other = await submit(world, retention, stream=not stream)
        assert other.refusal is not None
        assert other.refusal.outcome is Outcome.IDEMPOTENCY_MISMATCH


async def test_a_restart_forgets_neither_keys_nor_answers(autojump_clock: MockClock) -> None:
    disk, answers, engine = SimulatedDisk(), SimulatedDisk(), ScriptedEngine(WHOLE)
    async with fleet(autojump_clock, engine, disk=disk, answers=answers) as world:
        first = await world.ask(CHAT, headers=KEPT)
        await world.kernel.ask(OpenSession(SessionId("ses_2")), "test")
        cut = request(99, session=SessionId("ses_2"), idempotency=secret_digest("cut"), binding=secret_digest("body"))
        await world.dispatch.admit(cut)
    async with fleet(autojump_clock, engine, disk=disk, answers=answers, keys_of=world, seed=2) as world:
        again = await world.ask(CHAT, headers=KEPT)
        assert (again.status, again.body) == (200, first.body)
        assert again.headers["x-lunanexa-replayed"] == "true"
        # What the crash cut is in progress until its receipt, and has then ended.
        for expected in (Outcome.WORKLOAD_ACTIVE, Outcome.IDEMPOTENCY_OUTPUT_GONE):
            repeated = request(100, idempotency=secret_digest("cut"), binding=secret_digest("body"))
            refusal = await world.dispatch.admit(repeated)
            assert isinstance(refusal, Refusal)
            assert refusal.outcome is expected
            with trio.fail_after(60):
                while world.kernel.state.open:
                    await trio.sleep(1)
        assert world.kernel.state.receipts[WorkloadId("wl_99")].state is WorkloadState.FAILED
    assert len(engine.bodies) == 1


async def test_the_receipt_of_what_is_gone_comes_from_the_ledger(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, replays=False) as world:
        keyed = request(1, idempotency=secret_digest("k"), binding=secret_digest("body"))
        await world.kernel.ask(AdmitWorkload(keyed), "test")
        await settle_all(world)
        place = world.kernel.state.places[keyed.workload]
        del world.kernel.state.receipts[keyed.workload]  # As the newer ones that come after it would.
        again = request(5_000, idempotency=secret_digest("k"), binding=secret_digest("body"))
        refusal = await world.dispatch.admit(again)
        assert isinstance(refusal, Refusal)
        assert isinstance(refusal.receipt, dict)
        assert (refusal.receipt["sequence"], refusal.receipt["hash"]) == (place.sequence, place.hash)
        assert refusal.receipt["state"] == "Succeeded"
        assert bound_key(TenantId("default"), secret_digest("k")) in world.kernel.state.bindings
        unknown = output_gone(keyed.workload, None)
        structure(ErrorDocument, error_document(unknown, "req_1"), closed=True)


async def test_a_name_that_is_taken_hurts_nobody_who_has_it(autojump_clock: MockClock) -> None:
    """The first workload of this name goes on, however the second one ends."""
    engine = ScriptedEngine(Script(before_s=5, content_type="application/json", parts=(Part(ANSWER),)), WHOLE)
    async with fleet(autojump_clock, engine) as world, trio.open_nursery() as nursery:
        ended: list[Frames] = []

        async def first() -> None:
            ended.append(await submit(world, {"workload_id": "order-17"}))

        nursery.start_soon(first)
        await engine.asked.wait()
        for stream in (False, True):
            second = await submit(world, {"workload_id": "order-17"}, stream=stream)
            assert second.refusal is not None
            assert (second.refusal.outcome, second.response) == (Outcome.WORKLOAD_ACTIVE, None)
        with trio.CancelScope() as scope:
            scope.cancel()
            await submit(world, {"workload_id": "order-17"})
        assert "order-17" in world.kernel.state.open
        with trio.fail_after(60):
            while not ended:
                await trio.sleep(1)
        assert ended[0].document.state is WorkloadState.SUCCEEDED
        third = await submit(world, {"workload_id": "order-17"})
        assert third.refusal is not None
        assert third.refusal.outcome is Outcome.WORKLOAD_ACTIVE
