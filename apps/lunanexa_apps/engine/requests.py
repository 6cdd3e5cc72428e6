"""What a generation request asks for, read from JSON once and refused by field where it is wrong.

Here what all forms share, and chat and completion. Source: https://platform.openai.com/docs/api-reference ;
``ignore_eos`` is vLLM's.
"""

import enum
from typing import TypeAlias

import attrs

from lunanexa_apps.engine.errors import ApiError
from lunanexa_apps.engine.fields import Fields, Json
from lunanexa_apps.engine.sampling import Sampling
from lunanexa_apps.engine.tools import Tool, read_tool

LIMIT_MAX = 1 << 63
_MAX_STOPS = 16
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


@attrs.frozen(kw_only=True)
class Options:
    """What all forms share."""

    model: str
    sampling: Sampling
    seed: int | None
    stops: tuple[str, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool


class Form(enum.Enum):
    """In which form the answer is told. The value begins its identifier."""

    CHAT = "chatcmpl-"
    COMPLETION = "cmpl-"
    RESPONSE = "resp_"
    MESSAGE = "msg_"


@attrs.frozen(kw_only=True)
class TextRequest:
    """A request for text. ``prompt`` is what is counted (and continued by a completion), ``echoed`` what echo mode
    repeats; ``max_tokens`` None leaves the limit to the engine. ``field`` and ``limit_field`` name prompt and limit
    in refusals."""

    options: Options
    form: Form
    field: str
    limit_field: str = "max_tokens"
    prompt: str
    echoed: str
    max_tokens: int | None
    tool: Tool | None = None


Read: TypeAlias = TextRequest | ApiError


def read_chat(values: dict[str, Json]) -> Read:
    fields = Fields(values)
    options = read_options(fields)
    prompt, echoed = read_conversation(fields, "messages", ("text",))
    limit = fields.integer("max_completion_tokens", 1, LIMIT_MAX)
    older = fields.integer("max_tokens", 1, LIMIT_MAX)
    tool = read_tool(fields)
    fields.unsupported("logprobs", "audio")
    shape = fields.object("response_format")
    if shape is not None and shape.get("type") != "text":
        fields.refuse("response_format", "must be of type 'text'.", "unsupported_parameter")
    if fields.fault is not None:
        return fields.fault
    return TextRequest(
        options=options,
        field="messages",
        prompt=prompt,
        echoed=echoed,
        form=Form.CHAT,
        max_tokens=older if limit is None else limit,
        tool=tool,
    )


def read_completion(values: dict[str, Json]) -> Read:
    fields = Fields(values)
    options = read_options(fields)
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        fields.refuse("prompt", "must be a string, or a list of one string.")
        prompt = ""
    limit = fields.integer("max_tokens", 1, LIMIT_MAX)
    fields.integer("best_of", 1, 1)
    fields.unsupported("logprobs", "echo", "suffix")
    if fields.fault is not None:
        return fields.fault
    return TextRequest(
        options=options,
        field="prompt",
        prompt=prompt,
        echoed=prompt,
        form=Form.COMPLETION,
        max_tokens=limit,
    )


def read_options(fields: Fields, stops: str = "stop") -> Options:
    """``stops`` is the member with the stop strings."""
    model = fields.text("model")
    fields.integer("n", 1, 1)
    stream = fields.flag("stream")
    stream_options = fields.object("stream_options")
    include_usage = False
    if stream_options is not None:
        include_usage = stream_options.flag("include_usage")
        fields.adopt(stream_options)
        if not stream:
            fields.refuse("stream_options", "is only allowed when 'stream' is true.")
    return Options(
        model=model,
        sampling=Sampling(
            temperature=fields.number("temperature", 0.0, 2.0, 1.0),
            top_p=fields.number("top_p", 0.0, 1.0, 1.0),
        ),
        seed=fields.integer("seed", -LIMIT_MAX, LIMIT_MAX - 1),
        stops=_stops(fields, stops),
        ignore_eos=fields.flag("ignore_eos"),
        stream=stream,
        include_usage=include_usage,
    )


def _stops(fields: Fields, member: str) -> tuple[str, ...]:
    value = fields.get(member)
    if value is None:
        return ()
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list):
        fields.refuse(member, "must be a string or a list of strings.")
        return ()
    stops = tuple(stop for stop in listed if isinstance(stop, str) and stop)
    if len(stops) != len(listed) or len(stops) > _MAX_STOPS:
        fields.refuse(member, f"must hold at most {_MAX_STOPS} strings, none of them empty.")
    return stops


def read_conversation(fields: Fields, member: str, parts: tuple[str, ...], instructions: str = "") -> tuple[str, str]:
    """The whole conversation as one prompt, and the last thing that the user said. ``parts``: the types of parts
    that are text."""
    messages = fields.get(member)
    if not isinstance(messages, list) or not messages:
        fields.refuse(member, "must be a list of at least one message.")
        return "", ""
    lines = [f"system: {instructions}\n"] if instructions else []
    last_said = ""
    for index, value in enumerate(messages):
        field = f"{member}[{index}]"
        if not isinstance(value, dict):
            fields.refuse(field, "must be an object.")
            break
        message = Fields(value, f"{field}.")
        role = message.text("role")
        if role not in _ROLES:
            message.refuse("role", f"must be one of {', '.join(_ROLES)}.")
        content = read_text(message, "content", parts)
        fields.adopt(message)
        lines.append(f"{role}: {content}\n")
        if role == "user":
            last_said = content
    return "".join(lines) + "assistant:", last_said


def read_text(message: Fields, member: str, parts: tuple[str, ...]) -> str:
    """A string, or parts of text joined; only an assistant may say nothing."""
    value = message.get(member)
    if isinstance(value, str):
        return value
    if value is None:
        if message.get("role") != "assistant":
            message.refuse(member, "is required.")
        return ""
    texts: list[str] = []
    for part in value if isinstance(value, list) else [value]:
        text = part.get("text") if isinstance(part, dict) and part.get("type") in parts else None
        if not isinstance(text, str):
            message.refuse(member, "must be a string or a list of text parts.")
            break
        texts.append(text)
    return "".join(texts)
