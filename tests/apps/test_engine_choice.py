"""Which engine serves: every case of the choice."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_apps.up.engine_choice import (
    REFERENCE_ALIAS,
    ChoiceRefused,
    EngineChoice,
    EngineWish,
    Surroundings,
    choose_engine,
    program_of,
)
from lunanexa_core.drivers.catalog import DRIVERS
from lunanexa_core.ids import is_identifier

BARE = Surroundings(reference_engine="/venv/bin/lunanexa-engine", binary_runs=True)
WITH_LLAMA = attrs.evolve(BARE, llama_server="/usr/bin/llama-server", model_head=b"GGUF")


def chosen(wish: EngineWish, found: Surroundings) -> EngineChoice:
    choice = choose_engine(wish, found)
    assert isinstance(choice, EngineChoice), choice
    return choice


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
        (EngineWish(adopt="http://h:1", model="/m"), BARE, "--adopt excludes"),
        (EngineWish(adopt="http://h:1"), BARE, "no OpenAI-compatible server answers at http://h:1"),
        (EngineWish(adopt="http://h:1"), attrs.evolve(BARE, adopted_models=()), "lists no model"),
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


def test_adopting_serves_the_first_model_under_an_identifier() -> None:
    found = attrs.evolve(BARE, adopted_models=("Qwen/Qwen3-0.6B", "other"))
    choice = chosen(EngineWish(adopt="http://127.0.0.1:8000"), found)
    assert (choice.alias, choice.engine.served_name) == ("Qwen3-0.6B", "Qwen/Qwen3-0.6B")
    assert (choice.engine.driver, choice.engine.url) == ("generic_openai", "http://127.0.0.1:8000")
    assert choice.engine.binary is None
    assert choice.allow_declared


def test_adopting_serves_the_model_that_the_alias_names() -> None:
    found = attrs.evolve(BARE, adopted_models=("a", "llama3.2:1b"))
    choice = chosen(EngineWish(adopt="http://h:1", alias="llama3.2:1b"), found)
    assert choice.engine.served_name == "llama3.2:1b"
    renamed = chosen(EngineWish(adopt="http://h:1", alias="mine"), found)
    assert (renamed.alias, renamed.engine.served_name) == ("mine", "a")


@given(st.text(min_size=1, max_size=300))
def test_a_natural_alias_is_always_an_identifier(name: str) -> None:
    found = attrs.evolve(BARE, adopted_models=(name,))
    assert is_identifier(chosen(EngineWish(adopt="http://h:1"), found).alias)


def test_the_program_to_look_for() -> None:
    assert program_of(EngineWish(), WITH_LLAMA) == "/venv/bin/lunanexa-engine"
    assert program_of(EngineWish(model="/m"), WITH_LLAMA) == "/usr/bin/llama-server"
    assert program_of(EngineWish(model="/m", binary="/b"), WITH_LLAMA) == "/b"
    assert program_of(EngineWish(adopt="http://h:1"), WITH_LLAMA) is None
