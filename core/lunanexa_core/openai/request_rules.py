"""How a request of each dialect is read: one frozen value a dialect, so that nothing else asks which it is.

Source of the members: https://platform.openai.com/docs/api-reference and, for messages,
https://docs.anthropic.com/en/api/messages ; rerank as Jina, Cohere and the engines have it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

from lunanexa_core.workload import Dialect

TEXT_BYTES_A_TOKEN: Final = 3
"""Few tokens of any tokenizer in use are shorter on average; used where the engine did not count."""
AUDIO_TOKENS_A_SECOND: Final = 10
"""As OpenAI's audio models count what they hear."""
AUDIO_BYTES_A_TOKEN: Final = 1_600
"""Of sound with 128 kbit/s. Speech with less is counted as less, a WAV as more: it is a guess."""


@attrs.frozen
class Streaming:
    """A request asks for a stream when ``member`` has the value ``on``. ``off`` is what is meant without it."""

    member: str
    on: bool | str
    off: bool | str


_BY_FLAG: Final = Streaming("stream", True, False)


@attrs.frozen(kw_only=True)
class RequestRules:
    """``limits``: members that bound the output, newest first. ``stateful``: members that would need answers to be
    kept, with what is to be done instead; ``background`` among them only when it is true."""

    form: bool = False
    """The body is ``multipart/form-data``, else JSON."""
    media: bool = False
    """Bodies may bear images or sound: they are larger."""
    accept: str = "application/json"
    """What a whole answer is."""
    bare: bool = False
    """A whole answer is bytes of a medium: worth being passed on as they come, and without a place for our words."""
    streaming: Streaming | None = _BY_FLAG
    usage_option: bool = False
    """``stream_options.include_usage`` is known; else a stream bears its usage unasked, and it is the client's."""
    choices: bool = False
    """``n`` is known."""
    prompts: bool = False
    """Each of several prompts is answered."""
    limits: tuple[str, ...] = ()
    stateful: Mapping[str, str] = attrs.field(default=MappingProxyType({}))
    generates: bool = True
    """Output is reserved, of the usual length where no limit is given."""
    bytes_a_token: int = TEXT_BYTES_A_TOKEN
    """Of the body, where the engine did not count."""
    read: frozenset[str] = attrs.field(init=False)
    """The members that are looked at."""
    once: frozenset[str] = attrs.field(init=False)
    """Those that may not be given twice: readers differ in which of two they believe."""

    def __attrs_post_init__(self) -> None:
        once = {"model", "stream", *self.stateful}
        once |= {"stream_options"} if self.usage_option else set()
        once |= {self.streaming.member} if self.streaming is not None else set()
        read = {*once, *self.limits}
        read |= {"n"} if self.choices else set()
        read |= {"prompt"} if self.prompts else set()
        object.__setattr__(self, "once", frozenset(once))
        object.__setattr__(self, "read", frozenset(read))


_WHOLE_INPUT: Final = "is not supported, because no answer is kept here: send the whole conversation in 'input'"
_FORM: Final = RequestRules(form=True, media=True, accept="*/*", bytes_a_token=AUDIO_BYTES_A_TOKEN)
_RULES: Final[Mapping[Dialect, RequestRules]] = {
    Dialect.CHAT: RequestRules(
        media=True, usage_option=True, choices=True, limits=("max_completion_tokens", "max_tokens")
    ),
    Dialect.COMPLETIONS: RequestRules(usage_option=True, choices=True, prompts=True, limits=("max_tokens",)),
    Dialect.EMBEDDINGS: RequestRules(streaming=None, generates=False),
    Dialect.RESPONSES: RequestRules(
        media=True,
        limits=("max_output_tokens",),
        stateful=MappingProxyType(
            {
                "previous_response_id": _WHOLE_INPUT,
                "conversation": _WHOLE_INPUT,
                "background": "must be false, because no answer is kept here: wait for it, or send 'stream': true",
            }
        ),
    ),
    Dialect.MESSAGES: RequestRules(media=True, limits=("max_tokens",)),
    Dialect.RERANK: RequestRules(streaming=None, generates=False),
    Dialect.AUDIO_SPEECH: RequestRules(accept="*/*", bare=True, streaming=Streaming("stream_format", "sse", "audio")),
    Dialect.AUDIO_TRANSCRIPTIONS: _FORM,
    Dialect.AUDIO_TRANSLATIONS: _FORM,
}
assert _RULES.keys() == set(Dialect)


def request_rules(dialect: Dialect) -> RequestRules:
    """The rules of a dialect."""
    return _RULES[dialect]
