"""Responses, messages, rerank and sound through the gateway: passed on, judged, booked and broken each in its way."""

import base64
import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_apps.engine.settings import Mode
from lunanexa_apps.engine.sound import sound_of, wav_header
from lunanexa_core.openai.stream import KEEPALIVE
from lunanexa_core.openai.typed import named_frame
from lunanexa_core.outcomes import Outcome
from lunanexa_core.workload import Dialect, Usage, WorkloadState
from tests.apps.gateway_fleet import DONE, Fleet, Part, Script, ScriptedEngine, Sink, fleet, reference

TEXT = "One two three."
RESPONSE: dict[str, Any] = {"model": "tiny", "input": TEXT, "max_output_tokens": 8}
MESSAGE: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 8}
RERANK = {"model": "tiny", "query": "the sea", "documents": ["a clock", "the sea", "sea salt"], "top_n": 2}
SPEECH: dict[str, Any] = {"model": "tiny", "input": TEXT, "voice": "alloy", "response_format": "wav"}
BOUNDARY = "q9"
FORM_TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def form(sound: bytes, **fields: str) -> bytes:
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    head = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    delimiter = f"--{BOUNDARY}\r\n".encode()
    joined = b"\r\n".join(delimiter + part for part in [head + sound, *parts])
    return joined + f"\r\n--{BOUNDARY}--\r\n".encode()


def wav(text: str) -> bytes:
    sound = sound_of(text)
    return wav_header(len(sound)) + sound


def echo() -> Any:
    return reference(mode=Mode.ECHO)


async def listen(world: Fleet, body: bytes, dialect: Dialect = Dialect.AUDIO_TRANSCRIPTIONS) -> Sink:
    return await world.ask(body, dialect, content_type=FORM_TYPE)


def check_booked(world: Fleet, **usage: Any) -> None:
    receipt = world.receipts()[-1]
    assert receipt.state is WorkloadState.SUCCEEDED
    assert receipt.settlement.usage == Usage(**usage)
    assert world.at_rest()


async def test_a_response_is_the_same_whole_and_streamed(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, echo()) as world:
        whole = (await world.ask(RESPONSE, Dialect.RESPONSES)).json()
        assert whole["output"][0]["content"][0]["text"] == TEXT
        used = whole["usage"]
        check_booked(world, input_tokens=used["input_tokens"], output_tokens=used["output_tokens"])
        sink = await world.ask(RESPONSE | {"stream": True}, Dialect.RESPONSES)
        events = [json.loads(data) for data in sink.data()]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == TEXT
        assert events[-1]["type"] == "response.completed"
        assert events[-1]["response"]["output"][0]["content"] == whole["output"][0]["content"]
        check_booked(world, input_tokens=used["input_tokens"], output_tokens=used["output_tokens"])


async def test_a_message_is_the_same_whole_and_streamed(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, echo()) as world:
        whole = (await world.ask(MESSAGE, Dialect.MESSAGES)).json()
        assert whole["content"] == [{"type": "text", "text": TEXT}]
        used = whole["usage"]
        check_booked(world, input_tokens=used["input_tokens"], output_tokens=used["output_tokens"])
        sink = await world.ask(MESSAGE | {"stream": True}, Dialect.MESSAGES)
        events = [json.loads(data) for data in sink.data()]
        assert "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta") == TEXT
        assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
        assert all(event.startswith(b"event: ") for event in sink.events())
        check_booked(world, input_tokens=used["input_tokens"], output_tokens=used["output_tokens"])


async def test_documents_are_ranked(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        answer = (await world.ask(RERANK, Dialect.RERANK)).json()
        assert [result["index"] for result in answer["results"]] == [1, 2]
        check_booked(world, input_tokens=answer["usage"]["prompt_tokens"])


async def test_speech_is_told_as_bytes_and_its_transcript_is_the_text(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, reference(itl_ms=5)) as world:
        spoken = await world.ask(SPEECH, Dialect.AUDIO_SPEECH)
        assert spoken.headers["content-type"] == "audio/wav"
        assert spoken.body == wav(TEXT)
        output = -(-len(spoken.body) // 1_600)
        check_booked(world, input_tokens=-(-len(json.dumps(SPEECH)) // 3), output_tokens=output, estimated=True)
        for dialect in (Dialect.AUDIO_TRANSCRIPTIONS, Dialect.AUDIO_TRANSLATIONS):
            heard = (await listen(world, form(spoken.body, model="tiny"), dialect)).json()
            assert heard["text"] == TEXT
            used = heard["usage"]
            check_booked(world, input_tokens=used["input_tokens"], output_tokens=used["output_tokens"])


async def test_speech_streams_as_events(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        sink = await world.ask(SPEECH | {"stream_format": "sse"}, Dialect.AUDIO_SPEECH)
        events = [json.loads(data) for data in sink.data()]
        assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == wav(TEXT)
        used = events[-1]["usage"]
        check_booked(world, input_tokens=used["input_tokens"], output_tokens=used["output_tokens"])


async def test_a_transcript_streams(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        sink = await listen(world, form(wav(TEXT), model="tiny", stream="true"))
        events = [json.loads(data) for data in sink.data()]
        assert "".join(event["delta"] for event in events[:-1]) == events[-1]["text"] == TEXT
        assert world.receipt().settlement.usage.output_tokens == events[-1]["usage"]["output_tokens"]


@pytest.mark.parametrize("form_of_answer", ["text", "verbose_json"])
async def test_what_a_transcript_used_is_known_or_guessed(form_of_answer: str, autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        body = form(wav(TEXT), model="tiny", response_format=form_of_answer)
        sink = await listen(world, body)
        usage = world.receipt().settlement.usage
        assert usage.estimated
        if form_of_answer == "text":
            assert sink.headers["content-type"].startswith("text/plain")
            assert sink.body == TEXT.encode()
            assert usage.input_tokens == -(-len(body) // 1_600)
            assert usage.output_tokens == 5
        else:
            assert usage.input_tokens == 2  # 112 ms: ten tokens a second, each begun one


async def test_the_engine_gets_the_form_as_it_came(autojump_clock: MockClock) -> None:
    whole = Script(content_type="application/json", parts=(Part(b'{"text":"x"}'),))
    scripted = ScriptedEngine(whole)
    async with fleet(autojump_clock, scripted) as world:
        body = form(b"\x00\r\n\xff", model="tiny", language="en")
        await world.ask(body, Dialect.AUDIO_TRANSCRIPTIONS, content_type=FORM_TYPE + "; charset=utf-8")
        assert scripted.bodies == [body]
        assert scripted.headers[0][b"content-type"] == FORM_TYPE.encode()
        assert scripted.headers[0][b"accept"] == b"*/*"


async def test_what_is_refused_before_it_is_admitted(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        sinks = [
            await world.ask(RESPONSE | {"previous_response_id": "resp_1"}, Dialect.RESPONSES),
            await world.ask(RERANK | {"stream": True}, Dialect.RERANK),
            await listen(world, form(b"", language="en")),
            await world.ask(form(b"", model="tiny"), Dialect.AUDIO_TRANSCRIPTIONS),
        ]
        found = [sink.refusal.param if sink.refusal is not None else None for sink in sinks]
        assert found == ["previous_response_id", "stream", "model", "content-type"]
        assert not world.receipts()


async def test_a_driver_that_does_not_speak_a_dialect_refuses_it(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(), driver="llama_cpp") as world:
        for dialect, body in ((Dialect.RERANK, RERANK), (Dialect.EMBEDDINGS, {"model": "tiny", "input": "a"})):
            sink = await world.ask(body, dialect)
            assert sink.refusal is not None
            assert sink.refusal.outcome is Outcome.UNSUPPORTED_ENDPOINT


def event(kind: str, **members: Any) -> bytes:
    return named_frame(kind, members)


STREAMS: dict[Dialect, tuple[dict[str, Any], bytes, bytes]] = {
    Dialect.RESPONSES: (
        RESPONSE | {"stream": True},
        event("response.output_text.delta", delta="a", sequence_number=0),
        event("response.completed", response={"id": "r", "output": []}, sequence_number=1),
    ),
    Dialect.MESSAGES: (
        MESSAGE | {"stream": True},
        event("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"}),
        event("message_delta", delta={"stop_reason": "end_turn"}) + event("message_stop"),
    ),
    Dialect.AUDIO_SPEECH: (
        SPEECH | {"stream_format": "sse"},
        event("speech.audio.delta", audio="AAAA"),
        event("speech.audio.done"),
    ),
}


@pytest.mark.parametrize("dialect", STREAMS)
async def test_the_end_waits_for_the_receipt_and_nothing_is_added(dialect: Dialect, autojump_clock: MockClock) -> None:
    body, output, end = STREAMS[dialect]
    slow = Script(parts=(Part(output), Part(output, wait_s=1), Part(end, wait_s=1)))
    async with fleet(autojump_clock, ScriptedEngine(slow)) as world, trio.open_nursery() as nursery:
        sink = Sink()
        nursery.start_soon(world.gateway.infer, world.call(body, dialect), sink)
        await sink.until(lambda sink: len(sink.writes) == 1)
        world.disk.faults.delay_ms = 1_000
        await sink.until(lambda sink: len(sink.writes) == 2)
        told_s = trio.current_time()
        await sink.until(lambda sink: sink.ended)
        assert trio.current_time() - told_s >= 2
        assert sink.writes[2:] == [end]


@pytest.mark.parametrize("dialect", STREAMS)
@pytest.mark.parametrize("begun", ["output", "keepalive"])
async def test_a_stream_that_breaks_ends_in_an_error_of_its_dialect(
    dialect: Dialect, begun: str, autojump_clock: MockClock
) -> None:
    body, output, _ = STREAMS[dialect]
    parts = (Part(output), Part(DONE)) if begun == "output" else (Part(b": x\n\n", wait_s=60),)
    engines = [ScriptedEngine(Script(parts=parts)) for _ in range(2)]
    settings = GatewaySettings(keepalive_ms=9_000)
    async with fleet(autojump_clock, *engines, settings=settings) as world:
        sink = await world.ask(body, dialect)
        assert sink.status == 200
        assert sink.events()[0] == (output if begun == "output" else KEEPALIVE)
        last = sink.events()[-1]
        told = json.loads(sink.data()[-1])
        error = told if dialect is Dialect.RESPONSES else told["error"]
        assert error["code"] == "engine_failed"
        if dialect is not Dialect.AUDIO_SPEECH:
            assert last.startswith(b"event: error\n")
            assert told["type"] == "error"
            assert told["request_id"] == "req_1"
        if dialect is Dialect.RESPONSES:
            assert told["sequence_number"] == (1 if begun == "output" else 0)
        assert world.receipt().settlement.outcome is Outcome.ENGINE_FAILED
        assert world.receipt().settlement.usage.output_tokens == (1 if begun == "output" else 0)


async def test_the_engines_refusal_within_a_stream_has_the_dialects_form(autojump_clock: MockClock) -> None:
    refused = {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}}
    script = Script(
        status=400, content_type="application/json", before_s=20, parts=(Part(json.dumps(refused).encode()),)
    )
    async with fleet(autojump_clock, ScriptedEngine(script)) as world:
        sink = await world.ask(MESSAGE | {"stream": True}, Dialect.MESSAGES)
        assert sink.events()[-1] == event("error", error=refused["error"])


async def test_a_message_without_its_stop_gets_one(autojump_clock: MockClock) -> None:
    body, output, end = STREAMS[Dialect.MESSAGES]
    cut = end.removesuffix(event("message_stop"))
    async with fleet(autojump_clock, ScriptedEngine(Script(parts=(Part(output), Part(cut))))) as world:
        assert (await world.ask(body, Dialect.MESSAGES)).body == output + end


@pytest.mark.parametrize("dialect", [Dialect.RESPONSES, Dialect.MESSAGES])
async def test_a_whole_answer_is_asked_of_llama_server_as_a_stream(dialect: Dialect, autojump_clock: MockClock) -> None:
    """It would not notice that the client of a whole answer has gone."""
    usage, block = {"input_tokens": 5, "output_tokens": 1}, {"type": "text", "text": "a"}
    answers = {
        Dialect.RESPONSES: {"id": "r", "object": "response", "output": [], "usage": usage},
        Dialect.MESSAGES: {"id": "m", "usage": usage, "stop_reason": "end_turn", "content": [block]},
    }
    streams = {
        Dialect.RESPONSES: event("response.completed", response=answers[Dialect.RESPONSES]),
        Dialect.MESSAGES: event("message_start", message={"id": "m", "usage": {"input_tokens": 5, "output_tokens": 0}})
        + STREAMS[Dialect.MESSAGES][1]
        + event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 1})
        + event("message_stop"),
    }
    scripted = ScriptedEngine(Script(parts=(Part(streams[dialect]),)))
    async with fleet(autojump_clock, scripted, driver="llama_cpp") as world:
        sink = await world.ask(RESPONSE if dialect is Dialect.RESPONSES else MESSAGE, dialect)
        assert sink.json() == answers[dialect]
        assert json.loads(scripted.bodies[0])["stream"] is True
        check_booked(world, input_tokens=5, output_tokens=1)


SOUND = (Part(b"RIFF\0"), Part(b"\xff" * 3_000, wait_s=20), Part(b"\n\n", wait_s=20))


def spoken(*parts: Part, **changes: Any) -> Script:
    return Script(content_type="audio/wav", parts=parts, **changes)


async def test_bare_speech_passes_as_it_comes_and_its_end_waits_for_the_receipt(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(spoken(*SOUND))) as world, trio.open_nursery() as nursery:
        sink = Sink()
        nursery.start_soon(world.gateway.infer, world.call(SPEECH, Dialect.AUDIO_SPEECH), sink)
        await sink.until(lambda sink: bool(sink.writes))
        assert trio.current_time() == pytest.approx(0, abs=1)
        await sink.until(lambda sink: len(sink.writes) == 2)
        world.disk.faults.delay_ms = 1_000
        await sink.until(lambda sink: sink.ended)
        # No comment of ours stands in the silences.
        assert sink.writes == [SOUND[0].data[:-1], SOUND[0].data[-1:] + SOUND[1].data[:-1], b"\xff\n", b"\n"]
        assert sink.headers["content-type"] == "audio/wav"
        assert not sink.cut
        assert trio.current_time() >= 41
        check_booked(world, input_tokens=-(-len(json.dumps(SPEECH)) // 3), output_tokens=2, estimated=True)


async def test_bare_speech_that_breaks_ends_without_its_end(autojump_clock: MockClock) -> None:
    broken = spoken(*SOUND[:2], whole=False)
    async with fleet(autojump_clock, ScriptedEngine(broken), ScriptedEngine(broken)) as world:
        sink = await world.ask(SPEECH, Dialect.AUDIO_SPEECH)
        assert (sink.body, sink.cut) == ((SOUND[0].data + SOUND[1].data)[:-1], True)
        settlement = world.receipt().settlement
        assert (settlement.outcome, settlement.detail) == (Outcome.ENGINE_FAILED, "engine_cut")
        assert settlement.usage.output_tokens == 2
        assert world.at_rest()


async def test_bare_speech_that_is_late_or_has_no_receipt_ends_without_its_end(autojump_clock: MockClock) -> None:
    late = spoken(*SOUND, stuck=True)
    async with fleet(autojump_clock, ScriptedEngine(late, spoken(*SOUND))) as world, trio.open_nursery() as nursery:
        sink = await world.ask(SPEECH, Dialect.AUDIO_SPEECH, headers={"x-lunanexa-deadline-ms": "30000"})
        assert (sink.body, sink.cut) == ((SOUND[0].data + SOUND[1].data)[:-1], True)
        assert world.receipt().settlement.outcome is Outcome.DEADLINE_EXCEEDED
        sink = Sink()
        nursery.start_soon(world.gateway.infer, world.call(SPEECH, Dialect.AUDIO_SPEECH), sink)
        await sink.until(lambda sink: bool(sink.writes))
        world.disk.faults.delay_ms = 9_000
        await sink.until(lambda sink: sink.ended)
        assert (sink.body, sink.cut) == (b"".join(part.data for part in SOUND)[:-1], True)
        while not world.at_rest():
            await trio.sleep(1)


@pytest.mark.parametrize("dialect", [*STREAMS, None])
async def test_a_client_that_leaves_ends_it_and_what_came_is_booked(
    dialect: Dialect | None, autojump_clock: MockClock
) -> None:
    body, output, _ = STREAMS[dialect or Dialect.AUDIO_SPEECH]
    script = Script(parts=(Part(output), Part(output, wait_s=1)), stuck=True)
    if dialect is None:  # bare speech
        body, script = SPEECH, spoken(Part(b"s" * 1_600), Part(b"s" * 1_600, wait_s=1), stuck=True)
    scripted = ScriptedEngine(script)
    async with fleet(autojump_clock, scripted) as world:
        async with trio.open_nursery() as nursery:
            sink = Sink()
            nursery.start_soon(world.gateway.infer, world.call(body, dialect or Dialect.AUDIO_SPEECH), sink)
            await sink.until(lambda sink: len(sink.writes) == 2)
            nursery.cancel_scope.cancel("the client leaves")
        await scripted.departed.wait()
        receipt = world.receipt()
        assert receipt.state is WorkloadState.CANCELLED
        assert receipt.settlement.usage.output_tokens == 2
        assert world.at_rest()


async def test_before_its_first_byte_bare_speech_is_asked_of_another_replica(autojump_clock: MockClock) -> None:
    engines = [ScriptedEngine(spoken(whole=False), spoken(*SOUND)) for _ in range(2)]
    async with fleet(autojump_clock, *engines) as world:
        sink = await world.ask(SPEECH, Dialect.AUDIO_SPEECH)
        assert sink.refusal is not None
        assert sink.refusal.outcome is Outcome.ENGINE_FAILED
        sink = await world.ask(SPEECH, Dialect.AUDIO_SPEECH)
        assert sink.body == b"".join(part.data for part in SOUND)


async def test_sound_that_is_an_error_is_none(autojump_clock: MockClock) -> None:
    failed = Script(content_type="application/json", parts=(Part(b'{"error":{"message":"gpu-7"}}'),))
    async with fleet(autojump_clock, ScriptedEngine(failed)) as world:
        sink = await world.ask(SPEECH, Dialect.AUDIO_SPEECH)
        assert sink.refusal is not None
        assert sink.refusal.outcome is Outcome.ENGINE_FAILED
