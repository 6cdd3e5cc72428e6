"""Servers that run already, as deployments: aliases, clashes, refusals, slots and keys."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_apps.codec import decode, encode
from lunanexa_apps.setting_kinds import Secret
from lunanexa_apps.up.adopt_keys import read_adopt_keys
from lunanexa_apps.up.adoption import MODELS_MAX, adopt_servers, deployment_of, natural_alias
from lunanexa_apps.up.choice import AdoptedServer, ChoiceRefused, Chosen, EngineWish, Silence
from lunanexa_apps.up.configuration import CommandSettings
from lunanexa_apps.up.engine_choice import choose_engine, program_of
from lunanexa_apps.up.wish import read_wish
from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.detection import MODELS_PATH, RecognisedServer, ServedModel, recognise
from lunanexa_core.drivers.generic_openai import GENERIC_OPENAI
from lunanexa_core.drivers.reference import REFERENCE
from lunanexa_core.ids import is_identifier
from lunanexa_core.workload import Dialect
from tests.apps.test_engine_choice import BARE
from tests.recorded import recorded

OLLAMA_URL, VLLM_URL, OTHER_URL = "http://127.0.0.1:11434", "http://127.0.0.1:8000", "http://10.0.0.7:9000"


def real(url: str, name: str) -> AdoptedServer:
    told = recognise(recorded(name))
    assert told is not None
    return AdoptedServer(url=url, told=told)


def other(*names: str, url: str = OTHER_URL) -> AdoptedServer:
    models = tuple(ServedModel(name=name) for name in names)
    return AdoptedServer(
        url=url, told=RecognisedServer(driver=GENERIC_OPENAI, title="a server", models=models, slots=4)
    )


def adopted(*servers: AdoptedServer, **wishes: object) -> Chosen | ChoiceRefused:
    wish = attrs.evolve(EngineWish(adopt=tuple(server.url for server in servers)), **wishes)  # type: ignore[arg-type]  # a field each
    return choose_engine(wish, attrs.evolve(BARE, adopted=servers))


def chosen(*servers: AdoptedServer, **wishes: object) -> Chosen:
    choice = adopted(*servers, **wishes)
    assert isinstance(choice, Chosen), choice
    return choice


def refused(*servers: AdoptedServer, **wishes: object) -> ChoiceRefused:
    choice = adopted(*servers, **wishes)
    assert isinstance(choice, ChoiceRefused), choice
    return choice


def test_every_model_of_every_server_is_an_alias_of_its_own() -> None:
    choice = chosen(real(OLLAMA_URL, "ollama"), real(VLLM_URL, "vllm"))
    assert [(engine.alias, engine.engine.served_name, engine.engine.driver) for engine in choice.engines] == [
        ("qwen3:0.6b", "qwen3:0.6b", "ollama"),
        ("nomic-embed-text:latest", "nomic-embed-text:latest", "ollama"),
        ("Tiny/sea-0.1b", "Tiny/sea-0.1b", "vllm"),
        ("moon", "moon", "vllm"),
        ("shanty", "shanty", "vllm"),
    ]
    assert [engine.engine.url for engine in choice.engines] == [OLLAMA_URL] * 2 + [VLLM_URL] * 3
    assert [engine.engine.slots for engine in choice.engines] == [1, 1, 64, 64, 64]
    assert [engine.engine.context_tokens for engine in choice.engines] == [None, None, 1024, 1024, 1024]
    assert all(engine.allow_declared and engine.engine.binary is None for engine in choice.engines)
    assert choice.description == (
        f"Ollama 0.33.0 at {OLLAMA_URL} (adopted), 2 models; vLLM 0.32.0 at {VLLM_URL} (adopted), 3 models"
    )
    assert choice.notes == (f"{OLLAMA_URL}: gpt-oss:120b-cloud is run by another machine, and left out",)


def test_a_server_that_says_which_endpoints_it_has_is_asked_for_those_alone() -> None:
    (engine, *_) = chosen(real(VLLM_URL, "vllm")).engines
    assert engine.engine.dialects == (Dialect.CHAT, Dialect.COMPLETIONS, Dialect.RESPONSES, Dialect.MESSAGES)
    assert decode(EngineSpec, encode(engine.engine)) == engine.engine
    (any_server, *_) = chosen(real(VLLM_URL, "vllm"), engine="openai").engines
    assert any_server.engine.dialects is None


def test_what_was_asked_counts_more_than_what_a_server_says() -> None:
    (engine, *_) = chosen(real(VLLM_URL, "vllm"), slots=7, context_tokens=99, engine="openai").engines
    assert (engine.engine.slots, engine.engine.context_tokens) == (7, 99)
    assert engine.engine.driver == "generic_openai"


def test_two_servers_with_one_name() -> None:
    choice = chosen(other("a", "a-2"), other("a", url=VLLM_URL))
    assert [(engine.alias, engine.engine.served_name) for engine in choice.engines] == [
        ("a", "a"),
        ("a-2", "a-2"),
        ("a-3", "a"),
    ]
    assert choice.notes == (f"a of {VLLM_URL} is served as a-3: a is another's name",)
    assert len({engine.deployment for engine in choice.engines}) == 3


def test_an_alias_takes_the_model_of_that_name_alone() -> None:
    (engine,) = chosen(real(OLLAMA_URL, "ollama"), other("z"), alias="z").engines
    assert (engine.alias, engine.engine.url) == ("z", OTHER_URL)


def test_an_alias_renames_the_only_model() -> None:
    (engine,) = chosen(other("Qwen/Qwen3"), alias="chat").engines
    assert (engine.alias, engine.engine.served_name) == ("chat", "Qwen/Qwen3")


@pytest.mark.parametrize(
    ("silence", "message"),
    [
        (Silence.NO_ANSWER, f"no OpenAI-compatible server answers at {OTHER_URL}"),
        (Silence.NO_LIST, f"no OpenAI-compatible server answers at {OTHER_URL}"),
        (Silence.LOADING, f"the server at {OTHER_URL} is not ready yet"),
        (Silence.KEY, f"the server at {OTHER_URL} asks for a key"),
    ],
)
def test_one_silent_server_is_told_before_anything_starts(silence: Silence, message: str) -> None:
    refusal = refused(other("a", url=VLLM_URL), AdoptedServer(url=OTHER_URL, told=silence))
    assert refusal.message == message
    assert refusal.hint


def test_a_key_that_was_given_and_is_not_taken() -> None:
    silent = AdoptedServer(url=OTHER_URL, told=Silence.KEY)
    refusal = refused(silent, adopt_keys={OTHER_URL: "sesame"})
    assert "does not accept the key" in refusal.message
    assert "sesame" not in repr(refusal)


@pytest.mark.parametrize(
    ("servers", "wishes", "message"),
    [
        ((other("a"),), {"model": "/m"}, "--adopt excludes"),
        ((other("a"),), {"binary": "/b"}, "--adopt excludes"),
        ((other("a"),), {"arguments": ("-x",)}, "--adopt excludes"),
        ((other(),), {}, "lists no model"),
        ((other("a", "b"),), {"alias": "c"}, "no model is called c"),
        ((other(*map(str, range(MODELS_MAX + 1))),), {}, f"{MODELS_MAX} are adopted at most"),
    ],
)
def test_refusals_say_what_to_do(servers: tuple[AdoptedServer, ...], wishes: dict[str, object], message: str) -> None:
    refusal = refused(*servers, **wishes)
    assert message in refusal.message
    assert refusal.hint


def test_a_marketplace_serves_the_model_that_is_named() -> None:
    (engine,) = chosen(other(*map(str, range(MODELS_MAX + 1))), alias="7").engines
    assert engine.engine.served_name == "7"


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("qwen3:0.6b", "qwen3:0.6b"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("/models/gemma-3.Q8_0.gguf", "gemma-3.Q8_0"),
        ("/models/qwen/", "qwen"),
        ("/", "model"),
        (" a b ", "a-b"),
    ],
)
def test_aliases_of_names(name: str, alias: str) -> None:
    assert natural_alias(name) == alias


@given(st.text(min_size=1, max_size=300))
def test_any_name_makes_an_alias_and_a_deployment_that_are_taken(name: str) -> None:
    alias = natural_alias(name)
    assert 1 <= len(alias) <= 256
    assert alias.isprintable()
    assert is_identifier(deployment_of(alias))


@given(st.lists(st.text(min_size=1, max_size=3), min_size=2, max_size=8, unique=True))
def test_another_alias_is_another_deployment(aliases: list[str]) -> None:
    assert len({deployment_of(alias) for alias in aliases}) == len(aliases)


def test_no_program_is_looked_for() -> None:
    assert program_of(EngineWish(adopt=(OTHER_URL,)), BARE) is None


def test_a_driver_that_was_named_is_taken() -> None:
    wish = EngineWish(adopt=(OTHER_URL,))
    choice = adopt_servers(wish, (other("a"),), REFERENCE)
    assert isinstance(choice, Chosen)
    assert choice.engines[0].engine.driver == "reference"


def test_a_server_without_a_list_is_none_to_adopt() -> None:
    assert recognise({MODELS_PATH: b"<html>"}) is None


def test_local_servers_stand_where_the_word_stood() -> None:
    settings = CommandSettings(data_dir="/d", adopt=(OTHER_URL, "local", VLLM_URL), adopt_key=None)
    wish = read_wish(settings, (VLLM_URL, OLLAMA_URL))
    assert isinstance(wish, EngineWish)
    assert wish.adopt == (OTHER_URL, VLLM_URL, OLLAMA_URL)
    refusal = read_wish(settings, ())
    assert isinstance(refusal, ChoiceRefused)
    assert "usual ports" in refusal.message


def test_a_key_without_an_owner_is_refused_with_the_wish() -> None:
    settings = CommandSettings(data_dir="/d", adopt=(OTHER_URL, VLLM_URL), adopt_key=Secret("sesame"))
    assert isinstance(read_wish(settings, ()), ChoiceRefused)


# --- keys ---


def test_one_key_is_the_only_servers() -> None:
    assert read_adopt_keys("sesame", (OTHER_URL,)) == {OTHER_URL: "sesame"}
    assert read_adopt_keys(None, (OTHER_URL, VLLM_URL)) == {}


def test_keys_by_url_go_to_their_own_server() -> None:
    secret = f"{OTHER_URL} one\n\n{VLLM_URL}/v1  two\nhttp://elsewhere:1 three\n"
    assert read_adopt_keys(secret, (OTHER_URL, VLLM_URL)) == {OTHER_URL: "one", VLLM_URL: "two"}


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        ("sesame", "whose it is"),
        ("sesame\nopen", "line 1"),
        (f"{OTHER_URL} sesame\nhttps://box sesame", "line 2"),
        (f"{OTHER_URL} sesame now", "line 1"),
        (f"{OTHER_URL} sesame\n{OTHER_URL} open", "line 2"),
        (f"{OTHER_URL} sésame", "characters"),
        (f"{OTHER_URL} sesa\x00me", "characters"),
    ],
)
def test_keys_that_can_not_be_told_apart(secret: str, message: str) -> None:
    refusal = read_adopt_keys(secret, (OTHER_URL, VLLM_URL))
    assert isinstance(refusal, ChoiceRefused)
    assert message in refusal.message
    assert "same" not in refusal.message
    assert "adopt-key-file" in refusal.hint


def test_a_wish_shows_no_key() -> None:
    assert "sesame" not in repr(EngineWish(adopt_keys={OTHER_URL: "sesame"}))
    assert "sesame" not in repr(chosen(other("a"), adopt_keys={OTHER_URL: "sesame"}))
