"""A stream's events put together into the whole answer that the client asked for.

Some engines never notice that a client without ``stream`` has gone. They are always asked for a stream, and
what they would have answered is assembled here, by the same rule for every member: texts are joined, lists
are joined (tool calls by their index), of anything else the last word counts.
Source: https://platform.openai.com/docs/api-reference/chat/streaming ; the llama-server recording in tests.
"""

from collections.abc import Iterable
from typing import Any, Final

from lunanexa_core.openai.growing import GrowingText
from lunanexa_core.openai.response import document, written
from lunanexa_core.workload import Dialect

_KINDS: Final = {Dialect.CHAT: "chat.completion", Dialect.COMPLETIONS: "text_completion"}
_NAMES: Final = frozenset(("id", "type", "role", "name"))
"""Members that name something: the first word counts, a repetition is not a continuation."""

_DEPTH_MAX: Final = 4
"""Deeper than any delta that is told in parts; beyond it the last word counts."""


def assemble(dialect: Dialect, payloads: Iterable[bytes]) -> bytes | None:
    """The whole answer of the events' data (without ``[DONE]``). What is not a JSON object is passed over;
    ``None`` for an answer that is nested too deeply to be written."""
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for payload in payloads:
        chunk = document(payload)
        if chunk is None:
            continue
        listed = chunk.pop("choices", None)
        for choice in listed if isinstance(listed, list) else ():
            if isinstance(choice, dict):
                _add_choice(choices, choice)
        answer |= {name: value for name, value in chunk.items() if value is not None or name not in answer}
    answer["object"] = _KINDS[dialect]
    answer["choices"] = [_closed(dialect, choices[index]) for index in sorted(choices)]
    return written(answer)


def _add_choice(choices: dict[int, dict[str, Any]], choice: dict[str, Any]) -> None:
    index = choice.get("index")
    index = index if isinstance(index, int) else 0
    whole = choices.setdefault(index, {"index": index})
    for name, value in choice.items():
        match name, value:
            case "delta", dict():
                _merge(whole.setdefault("message", {}), value)
            case (("index" | "delta" | "message"), _):
                pass
            case ("text", str()) | ("logprobs", dict()):
                _merge(whole, {name: value})
            case _, None:
                whole.setdefault(name, None)
            case _:
                whole[name] = value


def _merge(whole: dict[str, Any], delta: dict[str, Any], depth: int = 0) -> None:
    for name, value in delta.items():
        before = whole.get(name)
        if name == "tool_calls" and depth == 0:
            if isinstance(value, list):
                whole[name] = _joined(before if isinstance(before, list) else [], value)
            continue
        match before, value:
            case _, None:
                whole.setdefault(name, None)
            case list(), list():
                before.extend(value)
            case dict(), dict() if depth < _DEPTH_MAX:
                _merge(before, value, depth + 1)
            case GrowingText(parts=parts), str():
                parts.append(value)
            case str(), str() if name not in _NAMES:
                whole[name] = GrowingText([before, value])
            case str(), _ if name in _NAMES and before:
                pass
            case _:
                whole[name] = value


def _joined(calls: list[Any], deltas: list[Any]) -> list[Any]:
    for delta in deltas:
        if not isinstance(delta, dict):
            continue
        index = delta.pop("index", len(calls))
        known = next((call for call in calls if call["index"] == index), None)
        if known is None:
            known = {"index": index}
            calls.append(known)
        _merge(known, delta, 1)
    return calls


def _closed(dialect: Dialect, choice: dict[str, Any]) -> dict[str, Any]:
    """A choice with every member that a whole answer always has, and without those of a stream only."""
    choice.setdefault("finish_reason", None)
    if dialect is Dialect.COMPLETIONS:
        choice.setdefault("text", "")
        return choice
    message = choice.setdefault("message", {})
    message.setdefault("role", "assistant")
    message.setdefault("content", None)
    for call in message.get("tool_calls") or ():
        call.pop("index", None)
    if message["content"] is None and not message.get("tool_calls"):
        message["content"] = ""
    return choice
