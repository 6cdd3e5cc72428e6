"""What is known of a request once its body was read, and the splice that readies the body for one engine.

A body is never parsed and written again: the engine gets the client's own bytes, with only the values of
``model``, ``stream`` and ``stream_options.include_usage`` exchanged in their places.
"""

import json

import attrs

from lunanexa_core.canonical import MAX_INTEGER
from lunanexa_core.openai.form import form_type
from lunanexa_core.openai.request_rules import TEXT_BYTES_A_TOKEN, request_rules
from lunanexa_core.workload import Dialect


@attrs.frozen
class Span:
    """A half-open range of bytes of the body."""

    start: int
    end: int


@attrs.frozen(kw_only=True)
class RequestHead:
    """The few fields that routing needs, and where the spliced values stand. ``include_usage``: the client
    wants the usage event, or nobody can do without. ``max_tokens`` is the newer of both names where both are given.
    ``choices`` are those of all prompts. ``boundary``: of a form."""

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
    boundary: str | None = None

    @property
    def bare(self) -> bool:
        """The answer is bytes of a medium, passed on as they come."""
        return request_rules(self.dialect).bare and not self.stream

    @property
    def content_type(self) -> str:
        """What the body is, to be told to the engine: of a form the boundary that it was read by."""
        return "application/json" if self.boundary is None else form_type(self.boundary)


def estimate_tokens(size_bytes: int) -> int:
    """Tokens that so many bytes of text may be, when nobody counted them."""
    return -(-size_bytes // TEXT_BYTES_A_TOKEN)


def input_estimate(head: RequestHead) -> int:
    """Tokens that the body may be, when nobody counted them."""
    return -(-head.body_bytes // request_rules(head.dialect).bytes_a_token)


def reserved_tokens(head: RequestHead, default_output_tokens: int) -> int:
    """What admission reserves: the body as input, and what it asks for as output, up to the usual."""
    asked = input_estimate(head)
    if request_rules(head.dialect).generates:
        output = default_output_tokens
        if head.max_tokens is not None and head.max_tokens >= 0:  # To some engines a negative one is no limit.
            output = min(head.max_tokens, default_output_tokens)
        asked += head.choices * output
    return min(asked, MAX_INTEGER)


def splice_request(
    head: RequestHead, body: bytes, *, served_name: str, include_usage: bool, stream: bool | None = None
) -> tuple[bytes | memoryview, ...]:
    """The body for one engine, in parts, so that a large one is not copied: ``model`` replaced, ``include_usage``
    and, where given, ``stream`` set; every other byte as it came. ``body`` is the one that ``head`` was read of."""
    assert len(body) == head.body_bytes, "the head of another body"
    name = json.dumps(served_name) if head.boundary is None else served_name
    edits = [(head.model_span, name.encode())]
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
    parts: list[bytes | memoryview] = []
    whole, at = memoryview(body), 0
    for span, replacement in sorted(edits, key=lambda edit: edit[0].start):
        parts += (whole[at : span.start], replacement)
        at = span.end
    parts.append(whole[at:])
    return tuple(parts)
