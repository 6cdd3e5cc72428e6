"""How an answer of each dialect is judged and counted: one frozen value a dialect."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import attrs

from lunanexa_core.openai.assemble import assemble
from lunanexa_core.openai.audio import SpeechReader, TranscriptReader, speech_estimate, transcript_estimate
from lunanexa_core.openai.messages import MessagesReader, assemble_message, message_estimate
from lunanexa_core.openai.response import output_estimate
from lunanexa_core.openai.responses import ResponsesReader, assemble_response, response_estimate
from lunanexa_core.openai.stream import AnswerReader, ChoicesReader
from lunanexa_core.workload import Dialect


def _nothing(_body: bytes) -> int:
    """Vectors and scores are no output in tokens."""
    return 0


@attrs.frozen(kw_only=True)
class AnswerRules:
    """``reader``: of a stream, for a request with so many choices. ``estimate``: output tokens of a whole answer
    that bears no usage. ``assemble``: the whole answer that the data of a stream's events tell (``None`` where they
    don't); ``None``: no answer of this dialect is asked for as a stream unless its client wants one."""

    reader: Callable[[int], AnswerReader]
    estimate: Callable[[bytes], int]
    assemble: Callable[[Iterable[bytes]], bytes | None] | None = None


_TRANSCRIPTS: Final = AnswerRules(reader=TranscriptReader, estimate=transcript_estimate)
_RULES: Final[Mapping[Dialect, AnswerRules]] = {
    Dialect.CHAT: AnswerRules(reader=ChoicesReader, estimate=output_estimate, assemble=partial(assemble, Dialect.CHAT)),
    Dialect.COMPLETIONS: AnswerRules(
        reader=ChoicesReader, estimate=output_estimate, assemble=partial(assemble, Dialect.COMPLETIONS)
    ),
    Dialect.EMBEDDINGS: AnswerRules(reader=ChoicesReader, estimate=_nothing),
    Dialect.RESPONSES: AnswerRules(reader=ResponsesReader, estimate=response_estimate, assemble=assemble_response),
    Dialect.MESSAGES: AnswerRules(reader=MessagesReader, estimate=message_estimate, assemble=assemble_message),
    Dialect.RERANK: AnswerRules(reader=ChoicesReader, estimate=_nothing),
    Dialect.AUDIO_SPEECH: AnswerRules(reader=SpeechReader, estimate=speech_estimate),
    Dialect.AUDIO_TRANSCRIPTIONS: _TRANSCRIPTS,
    Dialect.AUDIO_TRANSLATIONS: _TRANSCRIPTS,
}
assert _RULES.keys() == set(Dialect)


def answer_rules(dialect: Dialect) -> AnswerRules:
    """The rules of a dialect."""
    return _RULES[dialect]
