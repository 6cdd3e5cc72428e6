"""An n-gram language model with back-off, trained at the start from the text that ships with the engine.

It stands where a neural model stands: it turns a context into a distribution over the next token. A
context is looked up at its longest known length; successors of shorter lengths are mixed in at a
discount until there is something to choose from ("stupid back-off", Brants and others, 2007).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from lunanexa_apps.engine.sampling import Rng, Sampling, choose
from lunanexa_apps.engine.tokenizer import tokenise

_CONTEXT_TOKENS = 2
_DISCOUNT = 0.25
_ENOUGH_CHOICES = 6
_SHORTEST_TEXT = 24
"""No end before so many tokens: the corpus ends its paragraphs with sentences that would end most answers at once."""
_BOUNDARY = ""
"""Before the first token and after the last of a paragraph; no token is empty."""

Context = tuple[str, ...]


def read_corpus() -> str:
    return Path(__file__).with_name("corpus.txt").read_text(encoding="utf-8")


@attrs.frozen
class Distribution:
    """Tokens in falling order of weight (ties by text), and the weights beside them."""

    tokens: tuple[str, ...]
    weights: tuple[float, ...]


class LanguageModel:
    """Immutable after training but for a cache of distributions, bounded by the contexts of the corpus."""

    def __init__(self, corpus: str) -> None:
        self._followers: dict[Context, Counter[str]] = {}
        self._cache: dict[tuple[Context, bool], Distribution] = {}
        for paragraph in corpus.split("\n\n"):
            self._learn(tokenise(" ".join(paragraph.split())))
        assert self._followers, "a corpus needs at least one word"

    def _learn(self, tokens: list[str]) -> None:
        if not tokens:
            return
        padded = [_BOUNDARY, *tokens, _BOUNDARY]
        for end in range(1, len(padded)):
            for length in range(min(_CONTEXT_TOKENS, end) + 1):
                context = tuple(padded[end - length : end])
                self._followers.setdefault(context, Counter())[padded[end]] += 1

    def generate(self, prompt: Sequence[str], sampling: Sampling, rng: Rng, *, endless: bool = False) -> Iterator[str]:
        """Tokens that go on from ``prompt`` (a new paragraph where it is empty) until the model ends the
        paragraph; ``endless`` begins another instead of ending."""
        context: Context = tuple(prompt[-_CONTEXT_TOKENS:]) or (_BOUNDARY,)
        length = 0
        while True:
            distribution = self._distribution(context, may_end=length >= _SHORTEST_TEXT)
            token = distribution.tokens[choose(distribution.weights, sampling, rng)]
            if token != _BOUNDARY:
                yield token
                context, length = (*context, token)[-_CONTEXT_TOKENS:], length + 1
            elif endless:
                yield "\n\n"
                context, length = (_BOUNDARY,), 0
            else:
                return

    def _distribution(self, context: Context, *, may_end: bool) -> Distribution:
        while context and context not in self._followers:
            context = context[1:]
        key = (context, may_end)
        known = self._cache.get(key)
        if known is None:
            known = self._cache[key] = self._mix(context, may_end=may_end)
        return known

    def _mix(self, context: Context, *, may_end: bool) -> Distribution:
        weights: dict[str, float] = {}
        discount = 1.0
        for length in range(len(context), -1, -1):
            followers = self._followers[context[len(context) - length :]]
            total = followers.total()
            for token, count in followers.items():
                if may_end or token != _BOUNDARY:
                    weights[token] = weights.get(token, 0.0) + discount * count / total
            if len(weights) >= _ENOUGH_CHOICES or (weights and length == 1):
                # Words without any context would break each sentence, so they are a last resort only.
                break
            discount *= _DISCOUNT
        ordered = sorted(weights.items(), key=lambda pair: (-pair[1], pair[0]))
        return Distribution(tuple(token for token, _ in ordered), tuple(weight for _, weight in ordered))
