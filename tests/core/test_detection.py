"""Which server answers, by recorded answers, by imitations of one another, and by what no server says."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_core.drivers.detection import (
    DEPENDING_ON_FLAGS,
    LLAMA_PROPS,
    MODELS_PATH,
    OLLAMA_SLOTS,
    OLLAMA_TAGS,
    OLLAMA_VERSION,
    OPENAPI,
    TELLING_PATHS,
    VLLM_SLOTS,
    VLLM_VERSION,
    RecognisedServer,
    ServedModel,
    recognise,
    tells_by_refusing,
    with_refusals,
)
from lunanexa_core.workload import Dialect
from tests.examples import examples
from tests.recorded import recorded


def listing(*cards: Mapping[str, object]) -> bytes:
    return json.dumps({"object": "list", "data": list(cards)}).encode()


def recognised(answers: dict[str, bytes]) -> RecognisedServer:
    server = recognise(answers)
    assert server is not None
    return server


def test_vllm_with_each_of_its_names_and_adapters() -> None:
    """An adapter has the context of its base model, and does not say so."""
    server = recognised(recorded("vllm"))
    assert (server.driver.name, server.title, server.version) == ("vllm", "vLLM", "0.32.0")
    assert [model.name for model in server.models] == ["Tiny/sea-0.1b", "moon", "shanty"]
    assert [model.context_tokens for model in server.models] == [1024, 1024, 1024]
    assert server.slots == VLLM_SLOTS
    assert server.dialects == (Dialect.CHAT, Dialect.COMPLETIONS, Dialect.RESPONSES, Dialect.MESSAGES)


@pytest.mark.parametrize("openapi", [b"", b"{}", b'{"paths":[]}', b'{"paths":{"/v1/engines":{}}}'])
def test_a_server_that_does_not_say_which_endpoints_it_has(openapi: bytes) -> None:
    assert recognised(recorded("vllm") | {OPENAPI: openapi}).dialects is None


def test_llama_server_tells_its_slots_and_the_context_of_one() -> None:
    server = recognised(recorded("llama-server"))
    assert (server.driver.name, server.slots) == ("llama_cpp", 4)
    assert server.models == (ServedModel(name="gemma", context_tokens=512),)


TEXT = (Dialect.CHAT, Dialect.COMPLETIONS, Dialect.RESPONSES, Dialect.MESSAGES)


@pytest.mark.parametrize(
    ("embeddings", "rerank", "hears", "dialects"),
    [
        (501, 501, 501, TEXT),
        (400, 501, 501, (*TEXT[:2], Dialect.EMBEDDINGS, *TEXT[2:])),
        (501, 501, 400, (*TEXT, Dialect.AUDIO_TRANSCRIPTIONS)),
        (400, 400, 501, (Dialect.RERANK,)),
        (404, 404, 404, TEXT),
    ],
)
def test_llama_server_tells_by_its_refusals_what_its_flags_are(
    embeddings: int, rerank: int, hears: int, dialects: tuple[Dialect, ...]
) -> None:
    server = recognised(recorded("llama-server"))
    assert tells_by_refusing(server)
    statuses = dict(zip(DEPENDING_ON_FLAGS, (embeddings, rerank, hears), strict=True))
    assert with_refusals(server, statuses).dialects == dialects


def test_only_a_llama_server_of_one_model_is_asked_so() -> None:
    card = {"id": "a", "owned_by": "llamacpp"}
    assert not tells_by_refusing(recognised({MODELS_PATH: listing(card, {**card, "id": "b"})}))
    assert not tells_by_refusing(recognised(recorded("vllm")))


def test_llama_server_that_hides_its_properties() -> None:
    answers = recorded("llama-server")
    del answers[LLAMA_PROPS]
    server = recognised(answers)
    assert (server.driver.name, server.slots, server.version) == ("llama_cpp", 4, None)


def test_ollama_keeps_tags_and_leaves_out_what_another_machine_runs() -> None:
    server = recognised(recorded("ollama"))
    assert (server.driver.name, server.version, server.slots) == ("ollama", "0.33.0", OLLAMA_SLOTS)
    assert [model.name for model in server.models] == ["qwen3:0.6b", "nomic-embed-text:latest"]
    assert server.elsewhere == ("gpt-oss:120b-cloud",)


def test_ollama_without_a_model_lists_null() -> None:
    answers = recorded("ollama") | {MODELS_PATH: b'{"object":"list","data":null}', OLLAMA_TAGS: b'{"models":[]}'}
    server = recognised(answers)
    assert (server.driver.name, server.models) == ("ollama", ())


@pytest.mark.parametrize("owner", ["sglang", "openai", None])
def test_who_owns_its_cards_otherwise_is_any_server(owner: str | None) -> None:
    server = recognised({MODELS_PATH: listing({"id": "m", "owned_by": owner}), VLLM_VERSION: b'{"version":"1"}'})
    assert (server.driver.name, server.models) == ("generic_openai", (ServedModel(name="m"),))


def test_a_llama_server_that_answers_as_ollama_is_still_one() -> None:
    answers = recorded("llama-server") | {OLLAMA_TAGS: b'{"models":[{"name":"gemma"}]}'}
    assert recognised(answers).driver.name == "llama_cpp"


def test_ollamas_routes_with_other_models_are_not_ollama() -> None:
    answers = recorded("ollama") | {MODELS_PATH: listing({"id": "elsewhere"})}
    assert recognised(answers).driver.name == "generic_openai"


def test_a_name_counts_once_and_must_be_one_that_can_be_shown() -> None:
    cards = [{"id": name} for name in ("a", "", "b\x1b[2J", "a", 7, None)]
    assert [model.name for model in recognised({MODELS_PATH: listing(*cards)}).models] == ["a"]


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"data":7}', b'{"data":null}'])
def test_what_lists_no_models_is_no_server_to_adopt(body: bytes) -> None:
    assert recognise({MODELS_PATH: body}) is None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["vllm", "llamacpp"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["data", "id", "owned_by", "version", "models", "name", "meta", "n_ctx", "total_slots"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(st.dictionaries(st.sampled_from([MODELS_PATH, *TELLING_PATHS]), values))
def test_no_answer_of_a_stranger_breaks_it(answers: dict[str, object]) -> None:
    server = recognise({path: json.dumps(answer).encode() for path, answer in answers.items()})
    if server is not None:
        names = [model.name for model in server.models]
        assert len(names) == len(set(names))
        assert all(name and name.isprintable() for name in names)
        assert 1 <= server.slots <= 65_536


def test_ollama_needs_its_version() -> None:
    answers = recorded("ollama")
    del answers[OLLAMA_VERSION]
    assert recognised(answers).driver.name == "generic_openai"
