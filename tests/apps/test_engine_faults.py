"""Each fault that the engine can be told to commit, seen from its socket; which calls it strikes; who may switch it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_apps.engine.command_line import read_options
from lunanexa_apps.engine.faults import LEAK_CAP_MIB, Fault, FaultKind, Faults, Where, parse_fault
from lunanexa_apps.engine.settings import Mode
from tests.apps.engine_driver import arm, calling, chat, engine, get, metric, post

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
STREAM = chat("one two three four", stream=True, stream_options={"include_usage": True})
UNARY = chat("one two three four")
EMBED = {"model": "reference", "input": "a"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("hang", Fault(kind=FaultKind.HANG)),
        ("refuse", Fault(kind=FaultKind.REFUSE, number=503)),
        ("refuse=429,after=2,count=1", Fault(kind=FaultKind.REFUSE, number=429, after=2, count=1)),
        ("cut=0", Fault(kind=FaultKind.CUT, number=0)),
        ("exit,count=3", Fault(kind=FaultKind.EXIT, number=0, count=3)),
        ("slow-stop=1500", Fault(kind=FaultKind.SLOW_STOP, number=1500)),
    ],
)
def test_what_a_fault_says(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault
    assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize(
    "text",
    [
        *("", "fire", "hang=1", "cut=", "cut=-1", "cut=1,after", "cut,count=1,after=1", "cut=1 ", "cut=١"),
        *("refuse=200", "refuse=600", "exit=256", "leak=0", "leak=65", "slow-stop,after=1", "exit-at-start,count=1"),
    ],
)
def test_what_is_no_fault(text: str) -> None:
    with pytest.raises(ValueError, match="fault"):
        parse_fault(text)


def test_a_wrong_fault_ends_the_start_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read_options(["--fault", "fire"], {}, "0")
    assert ended.value.code == 2
    assert "no fault 'fire'" in capsys.readouterr().err
    options = read_options(["--fault", "cut=2", "--fault", "leak", "--allow-faults"], {}, "0").engine
    assert (list(map(str, options.faults)), options.allow_faults) == (["cut=2", "leak=1"], True)
    assert not read_options([], {}, "0").engine.allow_faults


@given(after=st.integers(0, 5), count=st.none() | st.integers(0, 5), calls=st.integers(0, 15))
def test_a_fault_strikes_the_calls_that_it_was_told_to(after: int, count: int | None, calls: int) -> None:
    faults = Faults([Fault(kind=FaultKind.HANG, after=after, count=count), Fault(kind=FaultKind.UNHEALTHY, number=500)])
    struck = [FaultKind.HANG in faults.strike(Where.REQUEST) for _ in range(calls)]
    last = calls if count is None else after + count
    assert struck == [after <= number < last for number in range(calls)]
    assert faults.strike(Where.HEALTH) == {FaultKind.UNHEALTHY: 500}


def test_a_leak_is_bounded() -> None:
    faults = Faults()
    for _ in range(3):
        faults.leak(1)
    assert faults.leaked_mib == 3
    faults.leak(LEAK_CAP_MIB)
    assert faults.leaked_mib == 3


@pytest.mark.parametrize("status", [503, 429])
async def test_refuse(status: int) -> None:
    app = engine(f"refuse={status},count=2")
    for path, body in ((CHAT, STREAM), (EMBEDDINGS, EMBED)):
        call = await post(app, path, body)
        assert (call.status, call.header(b"retry-after")) == (status, b"1")
        assert call.json()["error"]["code"] == "injected_fault"
    assert (await post(app, CHAT, UNARY)).status == 200
    assert (await get(app, "/health")).status == 200


async def test_close() -> None:
    call = await post(engine("close"), CHAT, STREAM)
    assert (call.aborted, call.sent) == (True, [])


@pytest.mark.parametrize(("path", "body"), [(CHAT, STREAM), (CHAT, UNARY), (EMBEDDINGS, EMBED)])
async def test_hang_holds_a_slot_until_the_client_leaves(path: str, body: dict[str, object]) -> None:
    app = engine("hang,count=1", slots=1)
    async with calling(app, path, body, body) as (hanging, waiting):
        assert not hanging.sent
        assert await metric(app, "vllm:num_requests_running") == 1
        hanging.departed.set()
        await hanging.ended.wait()
        await waiting.ended.wait()
        assert waiting.status == 200
        assert not hanging.sent


async def test_cut_ends_a_stream_after_so_many_tokens() -> None:
    app = engine("cut=2", mode=Mode.ECHO, slots=1)
    for _ in range(2):
        call = await post(app, CHAT, STREAM)
        assert call.aborted
        assert [json.loads(event)["choices"][0]["delta"]["content"] for event in call.events()] == ["", "one", " two"]
    await arm(app, "cut=0")
    assert [(call.aborted, call.events()) for call in [await post(app, CHAT, STREAM)]] == [(True, [])]
    # An answer with fewer tokens is cut before its finish.
    await arm(app, "cut=1000")
    call = await post(app, CHAT, STREAM)
    assert (call.aborted, len(call.events())) == (True, 5)
    assert not any(json.loads(event)["choices"][0]["finish_reason"] for event in call.events())
    assert await metric(app, 'vllm:request_success_total{engine="0",finished_reason="abort"') == 4
    assert await metric(app, "vllm:num_requests_running") == 0


async def test_cut_ends_a_whole_answer_half_way() -> None:
    app = engine("cut,count=1", mode=Mode.ECHO)
    cut, whole = await post(app, CHAT, UNARY), await post(app, CHAT, UNARY)
    assert cut.header(b"content-length") == whole.header(b"content-length")
    assert (cut.aborted, len(cut.body)) == (True, len(whole.body) // 2)
    assert cut.body == whole.body[: len(cut.body)].replace(b"00000002", b"00000001")


async def test_an_error_frame_is_followed_by_done() -> None:
    call = await post(engine("error-frame=2", mode=Mode.ECHO), CHAT, STREAM)
    *pieces, error = call.documents()
    assert "".join(piece["choices"][0]["delta"]["content"] for piece in pieces) == "one two"
    assert error["error"]["code"] == "injected_fault"
    whole = await post(engine("error-frame"), CHAT, UNARY)
    assert (whole.status, list(whole.json())) == (200, ["error"])


async def test_no_done() -> None:
    call = await post(engine("no-done", mode=Mode.ECHO), CHAT, STREAM)
    assert not call.aborted
    assert call.sent[-1]["more_body"] is False
    finish, usage = map(json.loads, call.events()[-2:])
    assert (finish["choices"][0]["finish_reason"], usage["usage"]["completion_tokens"]) == ("stop", 4)


async def test_exit_ends_the_process_and_answers_nothing() -> None:
    ended: list[int] = []
    app = engine("exit=3,after=1", end_process=ended.append)
    assert (await post(app, CHAT, UNARY)).status == 200
    assert not ended
    call = await post(app, CHAT, UNARY)
    assert (ended, call.aborted, call.sent) == ([3], True, [])


async def test_leak_answers_and_keeps_memory() -> None:
    app = engine("leak=2,count=2")
    for _ in range(3):
        assert (await post(app, EMBEDDINGS, EMBED)).status == 200
    assert (await get(app, "/faults")).json() == {
        "faults": [{"fault": "leak=2,count=2", "met": 3, "struck": 2}],
        "leaked_mib": 4,
    }


async def test_unhealthy() -> None:
    app = engine("unhealthy,after=1,count=1")
    assert [(await get(app, "/health")).status for _ in range(3)] == [200, 503, 200]


@pytest.mark.parametrize(
    ("fault", "listed"),
    [("wrong-start", ["sea", "other-start-1"]), ("wrong-model", ["other-sea", "other-start-1"])],
)
async def test_a_wrong_identity_is_listed_only(fault: str, listed: list[str]) -> None:
    app = engine(f"{fault},count=1", names=("sea", "start-1"))
    pages = [[card["id"] for card in (await get(app, "/v1/models")).json()["data"]] for _ in range(2)]
    assert pages == [listed, ["sea", "start-1"]]
    assert (await post(app, COMPLETIONS, {"model": "sea", "prompt": "x"})).status == 200


async def test_faults_are_switched_while_the_engine_serves() -> None:
    app = engine(api_key="sesame")
    assert (await post(app, "/faults", {"faults": ["refuse"]})).status == 401
    await arm(app, "refuse", "leak", key="sesame")
    assert (await post(app, CHAT, UNARY, key="sesame")).status == 503
    for wrong in ({}, {"faults": "hang"}, {"faults": [1]}, {"faults": ["fire"]}, {"faults": ["exit-at-start"]}):
        refused = await post(app, "/faults", wrong, key="sesame")
        assert (refused.status, refused.json()["error"]["param"]) == (400, "faults")
    assert [row["met"] for row in (await get(app, "/faults", key="sesame")).json()["faults"]] == [1, 1]
    await arm(app, key="sesame")
    assert (await post(app, CHAT, UNARY, key="sesame")).status == 200
    assert (await get(app, "/faults", key="sesame")).json() == {"faults": [], "leaked_mib": 1}


async def test_faults_can_not_be_switched_unless_the_start_allowed_it() -> None:
    app = engine("refuse", allow_faults=False)
    assert (await post(app, CHAT, UNARY)).status == 503
    assert (await get(app, "/faults")).status == 404
    assert (await post(app, "/faults", {"faults": []})).status == 404


async def test_a_call_that_the_engine_can_not_read_meets_no_fault() -> None:
    app = engine("hang")
    assert (await post(app, CHAT, b"{")).status == 400
    assert (await get(app, CHAT)).status == 405
    assert (await get(app, "/faults")).json()["faults"][0]["met"] == 0
