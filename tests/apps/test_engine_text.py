"""Tokens, sampling, the language model, stop strings and vectors: rules that hold for every text."""

import base64
import json
import struct
from itertools import islice
from types import NoneType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lunanexa_apps.engine.embeddings import as_base64, embed
from lunanexa_apps.engine.fields import Json
from lunanexa_apps.engine.generation import Generation
from lunanexa_apps.engine.language_model import read_corpus
from lunanexa_apps.engine.sampling import Rng, Sampling, choose
from lunanexa_apps.engine.tokenizer import surely_more_than, tokenise
from lunanexa_apps.engine.tools import Tool, arguments
from tests.apps.engine_driver import MODEL

TEXTS = st.text() | st.text(alphabet=" \n\tab1_.é漢🙂\x00", max_size=200)


@example(" " * 40 + "a\n\n")
@given(TEXTS)
def test_tokens_join_to_their_text(text: str) -> None:
    tokens = tokenise(text)
    assert "".join(tokens) == text
    assert all(tokens)


@given(TEXTS, st.integers(1, 20))
def test_a_text_called_too_long_is_too_long(text: str, limit: int) -> None:
    if surely_more_than(text, limit):
        assert len(tokenise(text)) > limit


def test_a_token_is_a_word_with_its_space_or_a_piece_of_a_long_one() -> None:
    assert tokenise("The refrigerator hums.") == ["The", " refriger", "ator", " hums", "."]


def test_the_generator_is_splitmix64() -> None:
    rng = Rng()
    rng._state = 1234567
    # Published test vector of SplitMix64 for the seed 1234567.
    assert [rng.word() for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=30), st.floats(0, 2), st.floats(0, 1), st.integers())
def test_a_choice_is_always_one_of_the_weights(weights: list[float], heat: float, top_p: float, seed: int) -> None:
    weights.sort(reverse=True)
    assert 0 <= choose(weights, Sampling(temperature=heat, top_p=top_p), Rng(seed)) < len(weights)


def test_cold_sampling_and_a_narrow_nucleus_take_the_heaviest() -> None:
    weights = [0.5, 0.3, 0.2]
    for seed in range(50):
        assert choose(weights, Sampling(temperature=0.0), Rng(seed)) == 0
        assert choose(weights, Sampling(top_p=0.5), Rng(seed)) == 0
        assert choose(weights, Sampling(top_p=0.8), Rng(seed)) < 2
    assert {choose(weights, Sampling(), Rng(seed)) for seed in range(50)} == {0, 1, 2}


@given(st.integers(), st.floats(0, 2), st.floats(0, 1))
def test_one_seed_gives_one_text(seed: int, heat: float, top_p: float) -> None:
    sampling = Sampling(temperature=heat, top_p=top_p)
    texts = {"".join(islice(MODEL.generate((), sampling, Rng(seed)), 60)) for _ in range(2)}
    assert len(texts) == 1
    assert texts != {""}


def test_seeds_give_different_texts_of_known_words() -> None:
    texts = {tuple(islice(MODEL.generate((), Sampling(), Rng(seed)), 40)) for seed in range(20)}
    assert len(texts) > 15
    known = set(tokenise(read_corpus().replace("\n\n", " "))) | set(tokenise(read_corpus()))
    assert {token for text in texts for token in text} <= known


@given(st.lists(st.text(min_size=1, max_size=5), max_size=4), st.integers(0, 9))
def test_any_prompt_can_be_continued(prompt: list[str], seed: int) -> None:
    assert list(islice(MODEL.generate(prompt, Sampling(), Rng(seed)), 1))


def test_a_text_has_a_length_that_can_be_shown() -> None:
    lengths = [len(list(MODEL.generate((), Sampling(), Rng(seed)))) for seed in range(50)]
    assert min(lengths) >= 24
    assert sum(lengths) / len(lengths) < 300


def test_an_endless_text_does_not_end() -> None:
    assert len(list(islice(MODEL.generate((), Sampling(), Rng(0), endless=True), 3000))) == 3000


def run(tokens: list[str], stops: tuple[str, ...] = (), max_tokens: int = 10_000) -> tuple[list[str], Generation]:
    generation = Generation(iter(tokens), max_tokens=max_tokens, stops=stops)
    pieces = []
    while generation.finish_reason is None:
        pieces.append(generation.advance())
    return pieces, generation


def test_tool_arguments_have_the_declared_types() -> None:
    kinds = ("string", "integer", "number", "boolean", "array", "object", "null")
    properties: dict[str, Json] = {kind: {"type": kind} for kind in kinds}
    properties |= {"chosen": {"enum": [[], "only"]}, "free": {}, "odd": 7}
    given = json.loads(arguments(Tool("f", {"properties": properties}), Rng(0)))
    assert {name: type(value) for name, value in given.items()} == {
        "string": str,
        "integer": int,
        "number": float,
        "boolean": bool,
        "array": list,
        "object": dict,
        "null": NoneType,
        "chosen": str,
        "free": NoneType,
        "odd": NoneType,
    }
    assert arguments(Tool("f", {}), Rng(0)) == "{}"


SMALL = st.text(alphabet="ab", min_size=1, max_size=4)


@given(st.lists(SMALL, max_size=12), st.lists(SMALL, max_size=3), st.integers(1, 14))
def test_the_text_ends_before_the_first_stop_string(tokens: list[str], stops: list[str], limit: int) -> None:
    pieces, generation = run(tokens, tuple(stops), limit)
    text = "".join(pieces)
    whole = "".join(tokens[:limit])
    found = [whole.find(stop) for stop in stops if stop in whole]
    if found:
        # Whichever stop is complete first ends the text; it can begin after another that ends later.
        assert generation.finish_reason == "stop"
        assert not any(stop in text for stop in stops)
        assert any(whole.startswith(text + stop) for stop in stops)
    else:
        assert text == whole
        assert generation.finish_reason == ("length" if len(tokens) >= limit else "stop")
        assert generation.completion_tokens == min(len(tokens), limit)


def test_a_stop_string_across_tokens_is_held_back_and_a_false_start_is_told() -> None:
    pieces, generation = run(["one", " two", " thr", "ow", " thr", "ee"], (" three",))
    assert pieces == ["one", " two", "", " throw", "", ""]
    assert (generation.finish_reason, generation.completion_tokens) == ("stop", 6)


def test_without_stops_each_token_leaves_at_once() -> None:
    assert run(["a", "b", "c"], max_tokens=2)[0] == ["a", "b"]


def cosine(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))


@given(TEXTS, st.integers(1, 2048))
def test_vectors_have_length_one(text: str, dimensions: int) -> None:
    vector = embed(tokenise(text), dimensions)
    assert len(vector) == dimensions
    assert cosine(vector, vector) == pytest.approx(1.0, abs=1e-4)
    assert embed(tokenise(text), dimensions) == vector


def test_texts_that_share_words_are_nearer() -> None:
    boat, ship, tax = (
        embed(tokenise(text), 256)
        for text in ("the boat leaves the harbour", "a boat in the harbour", "quarterly income tax forms")
    )
    assert cosine(boat, ship) > 0.4 > abs(cosine(boat, tax)) + 0.2


def test_base64_is_little_endian_floats() -> None:
    vector = embed(["sea"], 8)
    assert struct.unpack("<8f", base64.b64decode(as_base64(vector))) == vector
