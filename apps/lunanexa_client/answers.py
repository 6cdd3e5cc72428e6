"""What calls return, and how response headers are read."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs

from lunanexa_client.errors import ProtocolError
from lunanexa_core.allowance import Allowance, Allowances
from lunanexa_core.workload import Usage
from lunanexa_ports.http_client import Headers

Document = Mapping[str, Any]

_RESET: Final = re.compile(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})(?:\.\d*)?s)?(?:(\d{1,9})ms)?\Z")


@attrs.frozen(kw_only=True)
class AnswerHead:
    """What the head of an answer says; ``None`` where it does not say."""

    status: int
    headers: Mapping[str, str]
    """The last value of each, names in lower case."""

    @property
    def request_id(self) -> str | None:
        return self.headers.get("x-request-id")

    @property
    def workload_id(self) -> str | None:
        return self.headers.get("x-lunanexa-workload-id")

    @property
    def replayed(self) -> bool:
        """Whether an answer that was kept for this idempotency key was given again."""
        return self.headers.get("x-lunanexa-replayed") == "true"

    @property
    def queue_ms(self) -> int | None:
        return _count(self.headers.get("x-lunanexa-queue-ms"))

    @property
    def rate_limits(self) -> Allowances:
        """What is left of the key's limits a minute."""
        return Allowances(requests=self._allowance("requests"), tokens=self._allowance("tokens"))

    def _allowance(self, name: str) -> Allowance | None:
        limit = _count(self.headers.get(f"x-ratelimit-limit-{name}"))
        remaining = _count(self.headers.get(f"x-ratelimit-remaining-{name}"))
        if limit is None or remaining is None:
            return None
        return Allowance(
            limit=limit, remaining=remaining, reset_ms=_reset_ms(self.headers.get(f"x-ratelimit-reset-{name}", ""))
        )


@attrs.frozen
class Answer:
    """A whole answer. ``body`` is its JSON value, as the server or the engine wrote it."""

    head: AnswerHead
    body: Any

    @property
    def status(self) -> int:
        return self.head.status

    @property
    def usage(self) -> Usage | None:
        """What the answer says of its usage."""
        return usage_of(self.body)

    @property
    def workload_id(self) -> str | None:
        return self.head.workload_id or _text_member(self.body, "workload_id")

    @property
    def replayed(self) -> bool:
        return self.head.replayed

    @property
    def queue_ms(self) -> int | None:
        return self.head.queue_ms

    @property
    def rate_limits(self) -> Allowances:
        return self.head.rate_limits

    @property
    def text(self) -> str:
        """The text of the first choice; empty where there is none."""
        return text_of(self.body)


@attrs.frozen
class Model:
    """One alias that this key can call now. ``meta`` has its context length, dialects and state."""

    id: str
    owned_by: str | None
    meta: Mapping[str, Any]


@attrs.frozen
class Page:
    """A part of a list. ``next_cursor`` asks for what follows; ``None``: that was all."""

    items: tuple[Mapping[str, Any], ...]
    next_cursor: str | None


@attrs.frozen
class StreamEvent:
    """One server-sent event. ``name`` is its ``event`` field, ``message`` unless told."""

    name: str
    data: str

    def json(self) -> Any:
        """The JSON value of ``data``. Raises :class:`ProtocolError` when it is none."""
        try:
            return json.loads(self.data)
        except (ValueError, RecursionError):
            raise ProtocolError("an event of the stream is no JSON") from None

    @property
    def text(self) -> str:
        """The text that a chunk of a chat or completion adds; empty for any other event."""
        try:
            return text_of(json.loads(self.data))
        except (ValueError, RecursionError):
            return ""


def head_of(status: int, headers: Headers) -> AnswerHead:
    """The head with its headers as text."""
    return AnswerHead(
        status=status, headers={name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    )


def usage_of(document: Any) -> Usage | None:
    """The usage in an OpenAI answer or chunk, or in a canonical response."""
    found = document.get("usage") if isinstance(document, dict) else None
    if not isinstance(found, dict):
        return None
    canonical = "input" in found
    names = ("input", "output", "cached") if canonical else ("prompt_tokens", "completion_tokens", None)
    input_tokens, output_tokens = _number(found.get(names[0])), _number(found.get(names[1]))
    details = found.get("prompt_tokens_details")
    cached = found.get("cached") if canonical else details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=_number(cached),
        estimated=found.get("estimated") is True,
    )


def text_of(document: Any) -> str:
    """The text of the first choice of an OpenAI answer or chunk."""
    choices = document.get("choices") if isinstance(document, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    for holder in (choice.get("delta"), choice.get("message")):
        if isinstance(holder, dict):
            return _text_member(holder, "content") or ""
    return _text_member(choice, "text") or ""


def models_of(document: Any) -> tuple[Model, ...]:
    """The cards of ``GET /v1/models``. Raises :class:`ProtocolError`."""
    cards = document.get("data") if isinstance(document, dict) else None
    if not isinstance(cards, list):
        raise ProtocolError("the list of models can't be read")
    found = []
    for card in cards:
        name = _text_member(card, "id")
        if name is not None:
            meta = card.get("meta")
            found.append(Model(name, _text_member(card, "owned_by"), meta if isinstance(meta, dict) else {}))
    return tuple(found)


def page_of(document: Any, *, after: str | None) -> Page:
    """The page of a list that was asked for with the cursor ``after``. Raises :class:`ProtocolError`."""
    items = document.get("data") if isinstance(document, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ProtocolError("the list can't be read")
    following = _text_member(document, "next_cursor")
    if following is not None and following == after:
        raise ProtocolError("the list goes round in circles")
    return Page(tuple(items), following)


def object_of(answer: Answer) -> Document:
    """The object that it is. Raises :class:`ProtocolError`."""
    if not isinstance(answer.body, dict):
        raise ProtocolError("the answer is no JSON object")
    return answer.body


def _text_member(document: Any, name: str) -> str | None:
    value = document.get(name) if isinstance(document, dict) else None
    return value if isinstance(value, str) else None


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 18 else None


def _reset_ms(text: str) -> int:
    match = _RESET.match(text)
    if match is None:
        return 0
    hours, minutes, seconds, milliseconds = (int(part or 0) for part in match.groups())
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + milliseconds
