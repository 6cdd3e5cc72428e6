"""One object of a client's JSON, member by member, with the places of its values in the bytes.

Only the few values that are asked for are built: a body is passed over once (:mod:`lunanexa_core.openai.passing`).
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import attrs

from lunanexa_core.openai.passing import BLANK, DECODER, STEP_BYTES, MalformedJson, name_end, run, skip, value_end

__all__ = ["LARGE", "MalformedJson", "Member", "ends_at", "items", "members", "only_integers", "utf8_fault"]

MEMBERS_MAX: Final = 1_024
"""Of an object whose members are looked at one by one."""
NAME_BYTES_MAX: Final = 4_096
VALUE_BYTES_MAX: Final = 16 * 1024
"""Larger values are passed over and never built."""

_INTEGERS: Final = re.compile(rb"(?>(?:" + BLANK + rb"-?[0-9]++" + BLANK + rb",)*)")
_LAST_INTEGER: Final = re.compile(BLANK + rb"(?:-?[0-9]++" + BLANK + rb")?\]")


class Large:
    """Stands for a value that is too large to be built."""


LARGE: Final = Large()


@attrs.frozen(kw_only=True)
class Member:
    """One member: its value stands from ``start`` to ``end`` in ``data``."""

    name: str
    data: bytes = attrs.field(repr=False, eq=False)
    start: int
    end: int

    @property
    def opening(self) -> bytes:
        """The first byte of the value, which tells its kind."""
        return self.data[self.start : self.start + 1]

    @property
    def value(self) -> Any:
        """The value, or :data:`LARGE`."""
        if self.end - self.start > VALUE_BYTES_MAX:
            return LARGE
        return DECODER.decode(self.data[self.start : self.end].decode())


def utf8_fault(data: bytes) -> int | None:
    """The first byte that is no UTF-8."""
    at = 0
    while at < len(data):
        piece = data[at : at + STEP_BYTES]
        try:
            piece.decode()
        except UnicodeDecodeError as error:
            cut = error.reason == "unexpected end of data" and at + len(piece) < len(data)
            if not cut:
                return at + error.start
            piece = piece[: error.start]
        at += len(piece)
    return None


def members(data: bytes, opening: int = 0) -> Iterator[Member | int]:
    """The members of the object at ``opening`` (white space may stand before its brace), in order; last of
    all the position of its closing brace. ``data`` is UTF-8. Raises :class:`MalformedJson`."""
    at = skip(data, opening)
    if data[at : at + 1] != b"{":
        raise MalformedJson("a JSON object is expected", at)
    at = skip(data, at + 1)
    if data[at : at + 1] == b"}":
        yield at
        return
    for _ in range(MEMBERS_MAX):
        name_at, (end, at) = at, name_end(data, at)
        member = Member(name=_text(data, name_at, end), data=data, start=at, end=value_end(data, at))
        yield member
        at = skip(data, member.end)
        match data[at : at + 1]:
            case b",":
                at = skip(data, at + 1)
            case b"}":
                yield at
                return
            case _:
                raise MalformedJson("',' or '}' is expected", at)
    raise MalformedJson(f"it has more than {MEMBERS_MAX} members", at)


def ends_at(data: bytes, at: int) -> None:
    """Raises :class:`MalformedJson` unless only white space stands from ``at`` on."""
    rest = skip(data, at)
    if rest != len(data):
        raise MalformedJson("nothing may follow the JSON object", rest)


def items(data: bytes, opening: int) -> Iterator[tuple[int, int]]:
    """The places of the items of a well-formed array."""
    at = skip(data, opening + 1)
    while data[at : at + 1] != b"]":
        end = value_end(data, at)
        yield at, end
        at = skip(data, end)
        if data[at : at + 1] == b",":
            at = skip(data, at + 1)


def only_integers(data: bytes, opening: int, end: int) -> bool:
    """Whether a well-formed array holds nothing else."""
    at = run(_INTEGERS, data, opening + 1)
    return _LAST_INTEGER.fullmatch(data, at, end) is not None


def _text(data: bytes, start: int, end: int) -> str:
    if end - start > NAME_BYTES_MAX:
        raise MalformedJson(f"a member name is longer than {NAME_BYTES_MAX} bytes", start)
    return str(DECODER.decode(data[start:end].decode()))
