"""Drivers: the exact command line and environment of each start, and what an engine's answers are taken for."""

import json
import weakref
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.catalog import DRIVERS, dialects_of
from lunanexa_core.drivers.driver import (
    Health,
    IdentityFinding,
    IdentityQuestion,
    LaunchInput,
    LaunchPlan,
    LaunchRefusal,
    MetricMap,
)
from lunanexa_core.drivers.metrics import MAX_BODY_BYTES, read_metrics
from lunanexa_core.drivers.specification import EngineAddress, adopted_address, parse_engine_url
from lunanexa_core.ids import AssignmentId, DeploymentId, StartId
from lunanexa_core.southbound.documents import DesiredAssignment
from lunanexa_core.southbound.heartbeat import EngineReadings
from lunanexa_core.workload import Dialect
from tests.recorded import recorded

GOLDEN = Path(__file__).parent / "golden" / "launch"
START = StartId("start_7_0123456789")
KEY = "lnx_engine_key_of_the_test"
FULL = EngineSpec(
    driver="", served_name="tiny", binary="/opt/engine/bin/engine", arguments=("--seed", "7"),
    model_path="/models/tiny.gguf", slots=2, context_tokens=2048,
)  # fmt: skip
BARE = EngineSpec(driver="", served_name="tiny", binary="/opt/engine/bin/engine", model_path="/models/tiny.gguf")


def launch_input(engine: EngineSpec, key: str | None = KEY) -> LaunchInput:
    assignment = DesiredAssignment(
        assignment=AssignmentId("as_1"), generation=3, deployment=DeploymentId("de_1"), engine=engine, engine_key=key
    )
    return LaunchInput(start=START, assignment=assignment, port=40123)


def refusal_of(name: str, **changes: object) -> LaunchPlan | LaunchRefusal:
    return DRIVERS[name].launch(launch_input(attrs.evolve(BARE, **changes)))  # type: ignore[arg-type]  # one field each


@pytest.mark.parametrize("name", ["reference", "llama_cpp"])
@pytest.mark.parametrize("form", ["full", "bare"])
def test_the_launch_plan_is_the_golden_one(name: str, form: str) -> None:
    engine, key = (FULL, KEY) if form == "full" else (BARE, None)
    plan = DRIVERS[name].launch(launch_input(engine, key))
    assert isinstance(plan, LaunchPlan)
    written = {"argv": list(plan.argv), "environment": dict(plan.environment), "log_name": plan.log_name}
    assert written == json.loads((GOLDEN / f"{name}.{form}.json").read_text())


@pytest.mark.parametrize("name", ["reference", "llama_cpp"])
def test_a_key_is_never_on_the_command_line_nor_in_a_repr(name: str) -> None:
    plan = DRIVERS[name].launch(launch_input(FULL))
    assert isinstance(plan, LaunchPlan)
    assert KEY in plan.environment.values()
    assert not any(KEY in argument for argument in plan.argv)
    assert KEY not in repr(plan)


@pytest.mark.parametrize("name", ["reference", "llama_cpp"])
def test_a_specification_that_cannot_be_started_is_refused_with_its_reason(name: str) -> None:
    assert refusal_of(name, binary=None) is LaunchRefusal.NO_BINARY
    assert refusal_of(name, binary="engine") is LaunchRefusal.BINARY_NOT_ABSOLUTE
    assert refusal_of(name, model_path="tiny.gguf") is LaunchRefusal.MODEL_NOT_ABSOLUTE
    assert refusal_of(name, served_name="") is LaunchRefusal.BAD_SERVED_NAME
    assert refusal_of(name, served_name="a,b") is LaunchRefusal.BAD_SERVED_NAME
    assert refusal_of(name, served_name="--host") is LaunchRefusal.BAD_SERVED_NAME
    assert refusal_of(name, slots=0) is LaunchRefusal.NO_SLOTS
    assert refusal_of(name, arguments=("a\0b",)) is LaunchRefusal.NUL_IN_TEXT


def test_llama_server_without_a_model_would_be_a_healthy_router_and_is_refused() -> None:
    assert refusal_of("llama_cpp", model_path=None) is LaunchRefusal.NO_MODEL
    assert isinstance(refusal_of("reference", model_path=None), LaunchPlan)


@pytest.mark.parametrize("name", ["generic_openai", "vllm", "ollama"])
def test_an_engine_that_is_adopted_only_is_never_started(name: str) -> None:
    assert refusal_of(name) is LaunchRefusal.ADOPTED_ONLY


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        ((), set()),
        (("--embeddings",), {Dialect.EMBEDDINGS}),
        (("--threads", "2", "--embedding"), {Dialect.EMBEDDINGS}),
    ],
)
def test_llama_server_speaks_what_its_flags_say(arguments: tuple[str, ...], more: set[Dialect]) -> None:
    texts = {Dialect.CHAT, Dialect.COMPLETIONS, Dialect.RESPONSES, Dialect.MESSAGES}
    assert DRIVERS["llama_cpp"].dialects(attrs.evolve(BARE, arguments=arguments)) == texts | more


def test_what_the_other_engines_speak() -> None:
    for flag in ("--rerank", "--reranking"):
        assert DRIVERS["llama_cpp"].dialects(attrs.evolve(BARE, arguments=(flag,))) == {Dialect.RERANK}
    assert DRIVERS["reference"].dialects(BARE) == set(Dialect)
    assert DRIVERS["generic_openai"].dialects(BARE) == {Dialect.CHAT, Dialect.COMPLETIONS, Dialect.EMBEDDINGS}


def card(name: str, **members: object) -> dict[str, object]:
    return {"id": name, "object": "model", **members}


def listing(*cards: dict[str, object]) -> bytes:
    return json.dumps({"object": "list", "data": list(cards)}).encode()


OURS = IdentityQuestion(served_name="tiny", start=START)
ADOPTED = IdentityQuestion(served_name="tiny", start=None)


def test_the_reference_engine_proves_a_start_by_its_second_name() -> None:
    identify = DRIVERS["reference"].identify
    assert identify(listing(card("tiny"), card(START)), OURS) is IdentityFinding.PROVEN
    assert identify(listing(card("tiny"), card("start_6_0123456789")), OURS) is IdentityFinding.WRONG
    assert identify(listing(card(START)), OURS) is IdentityFinding.WRONG


def test_llama_server_proves_a_start_by_its_tags_and_by_nothing_else() -> None:
    identify = DRIVERS["llama_cpp"].identify
    assert identify(listing(card("tiny", tags=["x", START])), OURS) is IdentityFinding.PROVEN
    assert identify(listing(card("tiny", aliases=[START], tags=[])), OURS) is IdentityFinding.WRONG
    assert identify(listing(card("other", tags=[START])), OURS) is IdentityFinding.WRONG
    assert identify(listing(card("tiny", tags=START)), OURS) is IdentityFinding.WRONG
    assert identify(listing(), OURS) is IdentityFinding.WRONG


@pytest.mark.parametrize("name", sorted(DRIVERS))
def test_an_adopted_engine_has_no_slot_and_must_list_the_model(name: str) -> None:
    identify = DRIVERS[name].identify
    assert identify(listing(card("tiny", created=1.5e9)), ADOPTED) is IdentityFinding.NO_SLOT
    assert identify(listing(card("other")), ADOPTED) is IdentityFinding.WRONG


@pytest.mark.parametrize("name", sorted(DRIVERS))
@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"data": 7}', b'{"data"', b"\xff\xfe", b"[" * 100_000, b'{"data": {"id": "tiny"}}']
)
def test_what_is_no_model_list_is_unreadable(name: str, body: bytes) -> None:
    assert DRIVERS[name].identify(body, OURS) is IdentityFinding.UNREADABLE


@pytest.mark.parametrize("name", sorted(DRIVERS))
@given(body=st.binary() | st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=5).map(
    lambda data: json.dumps({"data": data}).encode()
))  # fmt: skip
def test_no_body_of_a_stranger_proves_anything_or_raises(name: str, body: bytes) -> None:
    assert DRIVERS[name].identify(body, OURS) in (IdentityFinding.UNREADABLE, IdentityFinding.WRONG)


def test_health_by_status() -> None:
    for name in ("reference", "llama_cpp", "vllm", "ollama"):
        judge = DRIVERS[name].judge_health
        assert [judge(status, b"") for status in (200, 503, 404, 500)] == [
            Health.READY, Health.LOADING, Health.BROKEN, Health.BROKEN,
        ]  # fmt: skip
    generic = DRIVERS["generic_openai"].judge_health
    assert generic(200, listing()) is Health.READY
    assert generic(200, b"<html>") is Health.BROKEN
    assert generic(503, b"") is Health.LOADING
    assert generic(401, b"") is Health.BROKEN


@pytest.mark.parametrize(
    ("name", "server", "served"), [("vllm", "vllm", "shanty"), ("llama_cpp", "llama-server", "gemma"),
                                   ("ollama", "ollama", "qwen3:0.6b")]
)  # fmt: skip
def test_a_real_server_is_well_lists_its_model_and_tells_its_load(name: str, server: str, served: str) -> None:
    driver, answers = DRIVERS[name], recorded(server)
    assert driver.judge_health(200, answers[driver.health_path]) is Health.READY
    for asked, finding in ((served, IdentityFinding.NO_SLOT), ("other", IdentityFinding.WRONG)):
        question = IdentityQuestion(served_name=asked, start=None)
        assert driver.identify(answers[driver.models_path], question) is finding
    if driver.metrics is not None and driver.metrics_path is not None:
        assert read_metrics(answers[driver.metrics_path], driver.metrics) == EngineReadings(running=0, waiting=0)
    else:
        assert name == "ollama"


def test_an_engine_answers_what_is_known_of_it_or_else_what_its_driver_says() -> None:
    engine = attrs.evolve(BARE, driver="vllm")
    assert Dialect.EMBEDDINGS in dialects_of(engine)
    assert dialects_of(attrs.evolve(engine, dialects=(Dialect.CHAT,))) == {Dialect.CHAT}


METRICS = MetricMap(running="llamacpp:requests_processing", waiting="llamacpp:requests_deferred")


def test_metrics_are_read_by_exact_name_and_series_are_added_up() -> None:
    body = (
        b"# HELP llamacpp:requests_processing Number\n# TYPE llamacpp:requests_processing gauge\n"
        b'llamacpp:requests_processing{engine="0",text="a } b"} 2\r\n'
        b'llamacpp:requests_processing{engine="1"} 3.0 1764437000\n'
        b"llamacpp:requests_processing_max 9\n"
        b"llamacpp:requests_deferred 0\n"
    )
    assert read_metrics(body, METRICS) == EngineReadings(running=5, waiting=0)


@pytest.mark.parametrize("value", [b"NaN", b"-1", b"+Inf", b"x", b"", b"1e300", b"0x10"])
def test_a_reading_that_makes_no_sense_is_unknown_and_not_zero(value: bytes) -> None:
    body = b'llamacpp:requests_processing{a="1"} 1\nllamacpp:requests_processing{a="2"} ' + value + b"\n"
    assert read_metrics(body, METRICS) == EngineReadings(running=None, waiting=None)


def test_an_endless_exposition_is_not_read() -> None:
    body = b"llamacpp:requests_processing 1\n" + b"#" * MAX_BODY_BYTES
    assert read_metrics(body, METRICS) == EngineReadings()


@given(st.binary())
def test_reading_metrics_never_raises(body: bytes) -> None:
    readings = read_metrics(b"llamacpp:requests_processing " + body, METRICS)
    assert readings.running is None or readings.running >= 0


def test_engine_urls() -> None:
    assert parse_engine_url("http://127.0.0.1:8080") == EngineAddress("127.0.0.1", 8080)
    assert parse_engine_url("http://gpu.example:8080/") == EngineAddress("gpu.example", 8080)
    assert parse_engine_url("http://[::1]:99") == EngineAddress("::1", 99)
    assert parse_engine_url("http://gpu.example") == EngineAddress("gpu.example", 80)
    for bad in (
        "https://h:1",
        "http://h:0",
        "http://h:65536",
        "http://u@h:1",
        "http://h:1/v1",
        "h:1",
        "",
        "http://h:1\n",
    ):
        assert parse_engine_url(bad) is None, bad


def test_what_strangers_call_an_address_does_not_stay_in_memory() -> None:
    class Text(str):
        pass

    sent = Text("http://" + "x" * 1_000)
    left = weakref.ref(sent)
    assert parse_engine_url(sent) is None
    del sent
    assert left() is None


def test_where_an_adopted_engine_answers() -> None:
    url = "http://127.0.0.1:11434"
    assert adopted_address(BARE) is None
    assert adopted_address(attrs.evolve(BARE, url=url)) is LaunchRefusal.URL_AND_BINARY
    assert adopted_address(attrs.evolve(BARE, url=url, binary=None)) == EngineAddress("127.0.0.1", 11434)
    assert adopted_address(attrs.evolve(BARE, url="ftp://x", binary=None)) is LaunchRefusal.BAD_URL
    assert EngineAddress("127.0.0.1", 1).on_this_machine
    assert not EngineAddress("10.0.0.1", 1).on_this_machine
