"""Which engine serves: every case of the choice."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_apps.up.choice import ChoiceRefused, Chosen, EngineChoice, EngineWish, Surroundings
from lunanexa_apps.up.engine_choice import DEPLOYMENT, REFERENCE_ALIAS, choose_engine, program_of
from lunanexa_core.drivers.catalog import DRIVERS
from lunanexa_core.ids import is_identifier

BARE = Surroundings(reference_engine="/venv/bin/lunanexa-engine", binary_runs=True)
WITH_LLAMA = attrs.evolve(BARE, llama_server="/usr/bin/llama-server", model_head=b"GGUF")


def chosen(wish: EngineWish, found: Surroundings) -> EngineChoice:
    choice = choose_engine(wish, found)
    assert isinstance(choice, Chosen), choice
    (engine,) = choice.engines
    assert engine.deployment == DEPLOYMENT
    return engine


def refused(wish: EngineWish, found: Surroundings) -> ChoiceRefused:
    choice = choose_engine(wish, found)
    assert isinstance(choice, ChoiceRefused), choice
    return choice


def test_nothing_said_takes_the_reference_engine() -> None:
    choice = chosen(EngineWish(), BARE)
    assert (choice.alias, choice.engine.driver) == (REFERENCE_ALIAS, "reference")
    assert choice.engine.binary == "/venv/bin/lunanexa-engine"
    assert not choice.allow_declared


def test_nothing_said_takes_the_reference_engine_even_beside_llama_server() -> None:
    assert chosen(EngineWish(), WITH_LLAMA).engine.driver == "reference"


def test_a_model_file_takes_llama_server_from_path() -> None:
    choice = chosen(EngineWish(model="/m/gemma-3-270m.Q8_0.gguf"), WITH_LLAMA)
    assert choice.alias == "gemma-3-270m.Q8_0"
    assert choice.engine.driver == "llama_cpp"
    assert choice.engine.binary == "/usr/bin/llama-server"
    assert choice.engine.model_path == "/m/gemma-3-270m.Q8_0.gguf"
    assert choice.engine.served_name == choice.alias


def test_a_named_program_is_taken_rather_than_that_on_path() -> None:
    wish = EngineWish(model="/m/x.gguf", binary="/opt/llama-server", alias="chat", slots=2, context_tokens=512)
    choice = chosen(wish, WITH_LLAMA)
    assert (choice.engine.binary, choice.alias) == ("/opt/llama-server", "chat")
    assert (choice.engine.slots, choice.engine.context_tokens) == (2, 512)


@pytest.mark.parametrize(
    ("wish", "found", "message"),
    [
        (EngineWish(engine="vulcan"), BARE, "unknown engine vulcan"),
        (EngineWish(engine="llama_cpp"), WITH_LLAMA, "llama.cpp needs a model file"),
        (EngineWish(engine="generic_openai"), BARE, "generic_openai serves what another server runs"),
        (EngineWish(engine="reference", model="/m/x.gguf"), WITH_LLAMA, "reads no file"),
        (EngineWish(model="/m/x.gguf"), attrs.evolve(WITH_LLAMA, model_head=None), "/m/x.gguf: no such file"),
        (EngineWish(model="/m/x.bin"), attrs.evolve(WITH_LLAMA, model_head=b"PK\3\4"), "/m/x.bin is no GGUF file"),
        (EngineWish(model="/m/x.gguf"), attrs.evolve(WITH_LLAMA, model_head=b""), "is no GGUF file"),
        (EngineWish(model="/m/x.gguf"), attrs.evolve(WITH_LLAMA, llama_server=None), "no llama-server on PATH"),
        (
            EngineWish(model="/m/x.gguf", binary="/opt/x"),
            attrs.evolve(WITH_LLAMA, binary_runs=False),
            "/opt/x: no such program",
        ),
        (EngineWish(binary="/opt/x"), BARE, "--engine-binary without a model"),
        (EngineWish(), attrs.evolve(BARE, binary_runs=False), "lunanexa-engine: no such program"),
        (EngineWish(engine="ollama"), BARE, "ollama serves what another server runs"),
        (EngineWish(engine="vllm"), BARE, "vllm serves what another server runs"),
    ],
)
def test_refusals_say_what_to_do(wish: EngineWish, found: Surroundings, message: str) -> None:
    refusal = refused(wish, found)
    assert message in refusal.message
    assert refusal.hint


def test_an_unknown_engine_lists_the_known_ones() -> None:
    assert all(name in refused(EngineWish(engine="x"), BARE).hint for name in DRIVERS)


@pytest.mark.parametrize("spelling", ["llama_cpp", "llama.cpp", "llama-server"])
def test_spellings_of_llama_cpp(spelling: str) -> None:
    assert chosen(EngineWish(engine=spelling, model="/m/x.gguf"), WITH_LLAMA).engine.driver == "llama_cpp"


@given(st.text(min_size=1, max_size=300))
def test_the_alias_of_a_file_is_always_an_identifier(name: str) -> None:
    assert is_identifier(chosen(EngineWish(model=f"/m/{name}"), WITH_LLAMA).alias)


def test_arguments_for_the_engine_are_passed_on() -> None:
    assert chosen(EngineWish(arguments=("--seed", "7")), BARE).engine.arguments == ("--seed", "7")


def test_the_program_to_look_for() -> None:
    assert program_of(EngineWish(), WITH_LLAMA) == "/venv/bin/lunanexa-engine"
    assert program_of(EngineWish(model="/m"), WITH_LLAMA) == "/usr/bin/llama-server"
    assert program_of(EngineWish(model="/m", binary="/b"), WITH_LLAMA) == "/b"
