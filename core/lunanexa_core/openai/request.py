"""What routing reads of a request body: once, and no more than routing needs.

What an engine may refuse (ranges, unknown fields, messages) is left to the engine. What is read of which dialect:
``request_rules``.
"""

from typing import Any, Final

from lunanexa_core.openai.form import FormPart, MalformedForm, boundary_of, form_parts
from lunanexa_core.openai.head import RequestHead, Span
from lunanexa_core.openai.request_rules import RequestRules, request_rules
from lunanexa_core.openai.scanning import MalformedJson, Member, ends_at, items, members, only_integers, utf8_fault
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.workload import Dialect

MAX_MODEL_CHARACTERS: Final = 256
MAX_CHOICES: Final = 1_024


def peek_request(dialect: Dialect, body: bytes, content_type: str = "application/json") -> RequestHead | Refusal:
    """Reads a body once. A refusal names the byte where UTF-8, JSON or a form breaks, or the field at fault.
    ``content_type`` matters to forms only."""
    if request_rules(dialect).form:
        return _form(dialect, body, content_type)
    wrong = utf8_fault(body)
    if wrong is not None:
        return _invalid(f"The body is not UTF-8: wrong byte at position {wrong}.")
    try:
        return _head(dialect, body)
    except MalformedJson as error:
        return _invalid(f"The body is not valid JSON: {error} at byte position {error.position}.")
    except _Fault as fault:
        return _invalid(f"'{fault.param}' {fault.what}.", fault.param)


class _Fault(Exception):
    def __init__(self, param: str, what: str) -> None:
        super().__init__(param, what)
        self.param = param
        self.what = what


def _head(dialect: Dialect, body: bytes) -> RequestHead:
    rules = request_rules(dialect)
    found, close = _members(body, 0, rules.read, rules.once, "")
    ends_at(body, close + 1)
    model = found.get("model")
    if model is None:
        raise _Fault("model", "is required")
    _stateless(rules, found)
    stream = _streams(rules, found)
    stream_member, options_member = found.get("stream"), found.get("stream_options")
    usage_member, options_empty = _options(options_member, stream=stream)
    limits = [_integer(found.get(name), name) for name in rules.limits]
    choices = _integer(found.get("n"), "n")
    if choices is not None and not 1 <= choices <= MAX_CHOICES:
        raise _Fault("n", f"must be from 1 to {MAX_CHOICES}")
    return RequestHead(
        dialect=dialect,
        model=_model(model.value),
        stream=stream,
        include_usage=not rules.usage_option or _flag(usage_member, "stream_options.include_usage"),
        max_tokens=next((limit for limit in limits if limit is not None), None),
        choices=(1 if choices is None else choices) * _prompts(found.get("prompt")),
        body_bytes=len(body),
        model_span=Span(model.start, model.end),
        stream_span=_span(stream_member),
        options_span=_span(options_member),
        options_empty=options_empty,
        usage_span=_span(usage_member),
        close=close,
    )


def _members(
    body: bytes, opening: int, read: frozenset[str], once: frozenset[str], prefix: str
) -> tuple[dict[str, Member], int]:
    """The members of interest (of a repeated one the last, as engines read it), and the closing brace."""
    found: dict[str, Member] = {}
    close = opening
    for member in members(body, opening):
        if isinstance(member, int):
            close = member
        elif member.name in read:
            if member.name in once and member.name in found:
                # Readers differ in which of two they believe; what was checked must be what is run.
                raise _Fault(prefix + member.name, "is given twice")
            found[member.name] = member
    return found, close


def _options(options: Member | None, *, stream: bool) -> tuple[Member | None, bool]:
    """The ``include_usage`` member of ``stream_options``, and whether the object is empty."""
    if options is None or options.value is None:
        return None, True
    if options.opening != b"{":
        raise _Fault("stream_options", "must be an object")
    if not stream:
        raise _Fault("stream_options", "is only allowed when 'stream' is true")
    usage = frozenset(("include_usage",))
    found, _ = _members(options.data, options.start, usage, usage, "stream_options.")
    return found.get("include_usage"), options.value == {}


def _stateless(rules: RequestRules, found: dict[str, Member]) -> None:
    for name, instead in rules.stateful.items():
        if name in found and found[name].value not in (None, False):
            raise _Fault(name, instead)


def _streams(rules: RequestRules, found: dict[str, Member]) -> bool:
    streaming = rules.streaming
    if streaming is None:
        if _flag(found.get("stream"), "stream"):
            raise _Fault("stream", "is not supported here")
        return False
    member = found.get(streaming.member)
    if isinstance(streaming.on, bool):
        return _flag(member, streaming.member)
    value: Any = None if member is None else member.value
    if value not in (None, streaming.on, streaming.off):
        raise _Fault(streaming.member, f"must be '{streaming.on}' or '{streaming.off}'")
    return bool(value == streaming.on)


_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False, "": False}


def _form(dialect: Dialect, body: bytes, content_type: str) -> RequestHead | Refusal:
    boundary = boundary_of(content_type)
    if boundary is None:
        return _invalid("The content type must be multipart/form-data with its boundary.", "content-type")
    try:
        parts = form_parts(body, boundary)
        model = _field(parts, "model")
        if model is None:
            raise _Fault("model", "is required")
        streaming = request_rules(dialect).streaming
        told = None if streaming is None else _field(parts, streaming.member)
        stream = None if told is None else _FLAGS.get(body[told.start : told.end].decode(errors="replace").lower())
        if told is not None and stream is None:
            raise _Fault("stream", "must be true or false")
        name = _model(body[model.start : model.end].decode(errors="surrogateescape"))
    except MalformedForm as error:
        return _invalid(f"The form can't be read: {error} at byte position {error.position}.")
    except _Fault as fault:
        return _invalid(f"'{fault.param}' {fault.what}.", fault.param)
    return RequestHead(
        dialect=dialect,
        model=name,
        stream=stream is True,
        include_usage=True,
        max_tokens=None,
        choices=1,
        body_bytes=len(body),
        model_span=Span(model.start, model.end),
        stream_span=None,
        options_span=None,
        options_empty=True,
        usage_span=None,
        close=len(body),
        boundary=boundary,
    )


def _field(parts: list[FormPart], name: str) -> FormPart | None:
    found = [part for part in parts if part.name == name]
    if len(found) > 1:
        raise _Fault(name, "is given twice")
    if found and found[0].file:
        raise _Fault(name, "must be a field, and no file")
    return found[0] if found else None


def _model(value: Any) -> str:
    if not isinstance(value, str):
        raise _Fault("model", "must be a string")
    if not 0 < len(value) <= MAX_MODEL_CHARACTERS:
        raise _Fault("model", f"must have from 1 to {MAX_MODEL_CHARACTERS} characters")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise _Fault("model", "must be UTF-8 without surrogates")
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


def _prompts(member: Member | None) -> int:
    """How many prompts a completion has: each is answered by choices of its own. A list of integers is one
    prompt in tokens."""
    if member is None or member.opening != b"[" or only_integers(member.data, member.start, member.end):
        return 1
    return sum(1 for _ in items(member.data, member.start))


def _span(member: Member | None) -> Span | None:
    return None if member is None else Span(member.start, member.end)


def _invalid(message: str, param: str | None = None) -> Refusal:
    return Refusal(outcome=Outcome.INVALID_REQUEST, message=message, param=param)
