"""The one written form of frames (:mod:`lunanexa_core.contract.frames`): each is one text message, a JSON object whose
member ``type`` names it.

Client and server read and write them with this module, so that they can't disagree. Reading is strict: a frame of the
other direction and a member of the wrong type or beyond its bound are told by name; so are, in what a client sends, a
repeated member and a number that JSON does not have. A server passes an engine's documents on as they are, and one
with a NaN in it must not end a connection. Unknown members are passed over, since later versions may add some.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

import attrs

from lunanexa_core.canonical import MAX_INTEGER
from lunanexa_core.contract.frames import (
    CREDITS_MAX,
    Accepted,
    Cancel,
    Cancelled,
    ClientFrame,
    Completed,
    Credit,
    Event,
    Failed,
    Goaway,
    JsonObject,
    Resume,
    ServerFrame,
    Submit,
)
from lunanexa_core.ids import MAX_LENGTH, WorkloadId, is_identifier

TOKEN_CHARACTERS_MAX: Final = 1_024

F = TypeVar("F")


@attrs.frozen(kw_only=True)
class FrameProblem:
    """Why a message is no frame. ``id`` is there when the workload it speaks of can be told, so that this workload
    alone can be refused. The message holds no value of the frame."""

    message: str
    param: str | None = None
    id: str | None = None


def write_frame(frame: ClientFrame | ServerFrame) -> str:
    """The text of ``frame``; members that are ``None`` are left out. Raises ``ValueError`` when a document in it
    has no JSON form (a NaN)."""
    members = {field.name: getattr(frame, field.name) for field in attrs.fields(type(frame))}
    document = {"type": type(frame).__name__.lower()}
    document.update((name, value) for name, value in members.items() if value is not None or name == "data")
    text = _ENCODER.encode(document)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair, as an engine may cut it: only an escape can carry it
        return json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text


def write_event(frame_id: str, seq: int, data: str) -> str:
    """The text of an :class:`Event` whose data is JSON text already: an engine's own, passed on as it is."""
    return f'{{"type":"event","id":"{frame_id}","seq":{seq},"data":{data}}}'


def write_completed(frame_id: str, seq: int, response: str) -> str:
    """The text of a :class:`Completed` whose response is JSON text already."""
    return f'{{"type":"completed","id":"{frame_id}","seq":{seq},"response":{response}}}'


def read_client_frame(text: str) -> ClientFrame | FrameProblem:
    """What a client sent. The caller bounds the size of the message."""
    return _read(text, _CLIENT, _STRICT)


def read_server_frame(text: str) -> ServerFrame | FrameProblem:
    """What a server sent. The caller bounds the size of the message."""
    return _read(text, _SERVER, _LENIENT)


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class _WrongError(Exception):
    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def _read(text: str, kinds: Mapping[str, Callable[[JsonObject], F]], decoder: json.JSONDecoder) -> F | FrameProblem:
    frame_id: str | None = None
    try:
        members = _members(text, decoder)
        candidate = members.get("id")
        if isinstance(candidate, str) and is_identifier(candidate):
            frame_id = candidate
        kind = members.get("type")
        read = kinds.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise _WrongError(f"type: must be one of {', '.join(kinds)}", "type")
        return read(members)
    except _WrongError as wrong:
        return FrameProblem(message=wrong.message, param=wrong.param, id=frame_id)


def _members(text: str, decoder: json.JSONDecoder) -> JsonObject:
    try:
        value = decoder.decode(text)
    except json.JSONDecodeError as error:
        raise _WrongError(f"not JSON: {error.msg} at character {error.pos}") from None
    except ValueError:  # an integer of thousands of digits
        raise _WrongError("not JSON: a number is too long") from None
    except RecursionError:
        raise _WrongError("nested too deeply") from None
    if not isinstance(value, dict):
        raise _WrongError("must be a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> JsonObject:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _WrongError("not JSON: a member is repeated")
    return members


def _no_constant(_: str) -> Any:
    raise _WrongError("not JSON: NaN and Infinity are no numbers")


_STRICT: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
_LENIENT: Final = json.JSONDecoder()


def _text(members: JsonObject, name: str, longest: int = MAX_LENGTH) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise _WrongError(f"{name}: must be text of 1 to {longest} characters", name)
    return value


def _optional_text(members: JsonObject, name: str, longest: int = MAX_LENGTH) -> str | None:
    return None if members.get(name) is None else _text(members, name, longest)


def _identifier(members: JsonObject, name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not is_identifier(value):
        raise _WrongError(f"{name}: must be 1 to {MAX_LENGTH} letters, digits and -_.:", name)
    return value


def _integer(members: JsonObject, name: str, least: int, most: int = MAX_INTEGER) -> int:
    value = members.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _WrongError(f"{name}: must be an integer from {least} to {most}", name)
    return value


def _object(members: JsonObject, name: str) -> JsonObject:
    value = members.get(name)
    if not isinstance(value, dict):
        raise _WrongError(f"{name}: must be an object", name)
    return cast("JsonObject", value)


def _flag(members: JsonObject, name: str) -> bool:
    value = members.get(name, False)
    if not isinstance(value, bool):
        raise _WrongError(f"{name}: must be true or false", name)
    return value


def _submit(members: JsonObject) -> Submit:
    return Submit(
        id=_identifier(members, "id"),
        request=_object(members, "request"),
        endpoint=_optional_text(members, "endpoint"),
        resumable=_flag(members, "resumable"),
    )


def _accepted(members: JsonObject) -> Accepted:
    place = members.get("queue_position")
    return Accepted(
        id=_identifier(members, "id"),
        workload_id=WorkloadId(_identifier(members, "workload_id")),
        queue_position=None if place is None else _integer(members, "queue_position", 0),
        resume_token=_optional_text(members, "resume_token", TOKEN_CHARACTERS_MAX),
        replayed=_flag(members, "replayed"),
    )


def _event(members: JsonObject) -> Event:
    if "data" not in members:
        raise _WrongError("data: is missing", "data")
    return Event(_identifier(members, "id"), _integer(members, "seq", 1), members["data"])


def _failed(members: JsonObject) -> Failed:
    error = _object(members, "error")
    for name in ("code", "message"):
        if not isinstance(error.get(name), str):
            raise _WrongError(f"error.{name}: must be text", f"error.{name}")
    return Failed(_identifier(members, "id"), error)


def _cancelled(members: JsonObject) -> Cancelled:
    receipt = members.get("receipt")
    return Cancelled(_identifier(members, "id"), None if receipt is None else _object(members, "receipt"))


_CLIENT: Final[Mapping[str, Callable[[JsonObject], ClientFrame]]] = {
    "submit": _submit,
    "cancel": lambda members: Cancel(_identifier(members, "id")),
    "credit": lambda members: Credit(_identifier(members, "id"), _integer(members, "events", 1, CREDITS_MAX)),
    "resume": lambda members: Resume(
        _identifier(members, "id"), _integer(members, "after", 0), _text(members, "token", TOKEN_CHARACTERS_MAX)
    ),
}
_SERVER: Final[Mapping[str, Callable[[JsonObject], ServerFrame]]] = {
    "accepted": _accepted,
    "event": _event,
    "completed": lambda members: Completed(
        _identifier(members, "id"), _integer(members, "seq", 1), _object(members, "response")
    ),
    "failed": _failed,
    "cancelled": _cancelled,
    "goaway": lambda members: Goaway(_integer(members, "retry_after_ms", 0)),
}
