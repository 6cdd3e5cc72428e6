"""What routing reads of a request body, and the splice that readies it for one engine.

A body is never parsed and written again: the engine gets the client's own bytes, with only the values of
``model``, ``stream`` and ``stream_options.include_usage`` exchanged in their places. What an engine may
refuse (ranges, unknown fields, messages) is left to the engine.
Source of the fields: https://platform.openai.com/docs/api-reference
"""

import json
from typing import Any, Final

import attrs

from lunanexa_core.canonical import MAX_INTEGER
from lunanexa_core.openai.scanning import MalformedJson, Member, ends_at, members
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.workload import Dialect

BYTES_PER_TOKEN: Final = 3
"""Few tokens of any tokenizer in use are shorter on average; used where the engine did not count."""
MAX_MODEL_CHARACTERS: Final = 256
MAX_CHOICES: Final = 1_024


@attrs.frozen
class Span:
    """A half-open range of bytes of the body."""

    start: int
    end: int


@attrs.frozen(kw_only=True)
class RequestHead:
    """The few fields that routing needs, and where the spliced values stand. ``include_usage``: the client
    wants the usage event. ``max_tokens`` is the newer of both names where both are given. ``choices`` are
    those of all prompts."""

    dialect: Dialect
    model: str
    stream: bool
    include_usage: bool
    max_tokens: int | None
    choices: int
    body_bytes: int
    model_span: Span
    stream_span: Span | None
    options_span: Span | None
    """The value of ``stream_options``: an object or ``null``."""
    options_empty: bool
    usage_span: Span | None
    """The value of ``include_usage`` within it."""
    close: int
    """Where the body's closing brace stands."""


def estimate_tokens(size_bytes: int) -> int:
    """Tokens that so many bytes of text may be, when nobody counted them."""
    return -(-size_bytes // BYTES_PER_TOKEN)


def reserved_tokens(head: RequestHead, default_output_tokens: int) -> int:
    """What admission reserves: the body as input, and what it asks for as output, up to the usual."""
    asked = estimate_tokens(head.body_bytes)
    if head.dialect is not Dialect.EMBEDDINGS:
        output = default_output_tokens
        if head.max_tokens is not None:
            output = min(max(0, head.max_tokens), default_output_tokens)
        asked += head.choices * output
    return min(asked, MAX_INTEGER)


def peek_request(dialect: Dialect, body: bytes) -> RequestHead | Refusal:
    """Reads a body once. A refusal names the byte where UTF-8 or JSON breaks, or the field at fault."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        return _invalid(f"The body is not UTF-8: wrong byte at position {error.start}.")
    try:
        return _head(dialect, body, text)
    except MalformedJson as error:
        return _invalid(f"The body is not valid JSON: {error} at byte position {_offset(text, error.position)}.")
    except _Fault as fault:
        return _invalid(f"'{fault.param}' {fault.what}.", fault.param)


def splice_request(
    head: RequestHead, body: bytes, *, served_name: str, include_usage: bool, stream: bool | None = None
) -> bytes:
    """The body for one engine: ``model`` replaced, ``include_usage`` and, where given, ``stream`` set; every
    other byte as it came. ``body`` is the one that ``head`` was read of."""
    assert len(body) == head.body_bytes, "the head of another body"
    edits = [(head.model_span, json.dumps(served_name).encode())]
    added = b""
    if stream is not None and stream != head.stream:
        value = b"true" if stream else b"false"
        if head.stream_span is None:
            added += b',"stream":' + value
        else:
            edits.append((head.stream_span, value))
    if include_usage and not head.include_usage:
        if head.usage_span is not None:
            edits.append((head.usage_span, b"true"))
        elif head.options_span is None:
            added += b',"stream_options":{"include_usage":true}'
        elif body[head.options_span.start : head.options_span.start + 1] == b"{":
            inside = Span(head.options_span.start + 1, head.options_span.start + 1)
            edits.append((inside, b'"include_usage":true' + (b"" if head.options_empty else b",")))
        else:
            edits.append((head.options_span, b'{"include_usage":true}'))
    edits.append((Span(head.close, head.close), added))
    parts: list[bytes] = []
    at = 0
    for span, replacement in sorted(edits, key=lambda edit: edit[0].start):
        parts += (body[at : span.start], replacement)
        at = span.end
    parts.append(body[at:])
    return b"".join(parts)


class _Fault(Exception):
    def __init__(self, param: str, what: str) -> None:
        super().__init__(param, what)
        self.param = param
        self.what = what


_ONCE: Final = frozenset(("model", "stream", "stream_options"))
_READ: Final = _ONCE | {"max_tokens", "max_completion_tokens", "n", "prompt"}


def _head(dialect: Dialect, body: bytes, text: str) -> RequestHead:
    found, close = _members(text, 0, _READ, _ONCE, "")
    ends_at(text, close + 1)
    model = found.get("model")
    if model is None:
        raise _Fault("model", "is required")
    stream_member, options_member = found.get("stream"), found.get("stream_options")
    stream = _flag(stream_member, "stream")
    usage_member, options_empty = _options(text, options_member, stream=stream)
    if stream and dialect is Dialect.EMBEDDINGS:
        raise _Fault("stream", "is not supported by embeddings")
    newer, older = (_integer(found.get(name), name) for name in ("max_completion_tokens", "max_tokens"))
    choices = _integer(found.get("n"), "n")
    if choices is not None and not 1 <= choices <= MAX_CHOICES:
        raise _Fault("n", f"must be from 1 to {MAX_CHOICES}")
    spans = _spans(text, (model, stream_member, options_member, usage_member))
    assert spans[0] is not None
    return RequestHead(
        dialect=dialect,
        model=_model(model),
        stream=stream,
        include_usage=_flag(usage_member, "stream_options.include_usage"),
        max_tokens=older if newer is None else newer,
        choices=(1 if choices is None else choices) * _prompts(dialect, found.get("prompt")),
        body_bytes=len(body),
        model_span=spans[0],
        stream_span=spans[1],
        options_span=spans[2],
        options_empty=options_empty,
        usage_span=spans[3],
        close=_offset(text, close),
    )


def _members(
    text: str, opening: int, read: frozenset[str], once: frozenset[str], prefix: str
) -> tuple[dict[str, Member], int]:
    """The members of interest (of a repeated one the last, as engines read it), and the closing brace."""
    found: dict[str, Member] = {}
    close = opening
    for member in members(text, opening):
        if isinstance(member, int):
            close = member
        elif member.name in read:
            if member.name in once and member.name in found:
                # Readers differ in which of two they believe; what was checked must be what is run.
                raise _Fault(prefix + member.name, "is given twice")
            found[member.name] = member
    return found, close


def _options(text: str, options: Member | None, *, stream: bool) -> tuple[Member | None, bool]:
    """The ``include_usage`` member of ``stream_options``, and whether the object is empty."""
    if options is None or options.value is None:
        return None, True
    if not isinstance(options.value, dict):
        raise _Fault("stream_options", "must be an object")
    if not stream:
        raise _Fault("stream_options", "is only allowed when 'stream' is true")
    usage = frozenset(("include_usage",))
    found, _ = _members(text, options.start, usage, usage, "stream_options.")
    return found.get("include_usage"), not options.value


def _model(member: Member) -> str:
    value = member.value
    if not isinstance(value, str):
        raise _Fault("model", "must be a string")
    if not 0 < len(value) <= MAX_MODEL_CHARACTERS:
        raise _Fault("model", f"must have from 1 to {MAX_MODEL_CHARACTERS} characters")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise _Fault("model", "must not hold lone surrogates")
    return value


def _flag(member: Member | None, name: str) -> bool:
    value: Any = None if member is None else member.value
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _Fault(name, "must be true or false")
    return value


def _integer(member: Member | None, name: str) -> int | None:
    value: Any = None if member is None else member.value
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise _Fault(name, "must be an integer")
    return value


def _prompts(dialect: Dialect, member: Member | None) -> int:
    """How many prompts a completion has: each is answered by choices of its own. A list of integers is one
    prompt in tokens."""
    value: Any = None if member is None or dialect is not Dialect.COMPLETIONS else member.value
    if not isinstance(value, list) or all(isinstance(item, int) for item in value):
        return 1
    return len(value)


def _spans(text: str, found: tuple[Member | None, ...]) -> list[Span | None]:
    """Characters into bytes."""
    return [
        None if member is None else Span(_offset(text, member.start), _offset(text, member.end)) for member in found
    ]


def _offset(text: str, position: int) -> int:
    return position if text.isascii() else len(text[:position].encode())


def _invalid(message: str, param: str | None = None) -> Refusal:
    return Refusal(outcome=Outcome.INVALID_REQUEST, message=message, param=param)
