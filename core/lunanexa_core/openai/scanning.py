"""One object of a client's JSON, member by member, with the places of its values in the text.

The standard library's C scanner does the reading; this module only walks the outer object, because a
place in the text is what splicing needs and a parsed document has lost. Strict where the standard
library is not: no NaN, no lone trailing bytes, nesting beyond the scanner's depth is a fault of the text.
Grammar: RFC 8259.
"""

import re
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from typing import Any, Final

import attrs

_SPACE = re.compile(r"[ \t\n\r]*")
_NOT_JSON = re.compile(r'"|NaN|-?Infinity')


class MalformedJson(ValueError):
    """The text is no strict JSON object. ``position`` counts characters of the text."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class _NotANumber(ValueError):
    """Told from other faults so that its place can be looked up."""


def _refuse_constant(text: str) -> Any:
    raise _NotANumber(text)


_DECODER: Final = JSONDecoder(parse_constant=_refuse_constant)


@attrs.frozen(kw_only=True)
class Member:
    """One member: its value, and where the value stands (``start`` to ``end``, in characters)."""

    name: str
    value: Any
    start: int
    end: int


def members(text: str, opening: int = 0) -> Iterator[Member | int]:
    """The members of the object at ``opening`` (white space may stand before its brace), in order; last of
    all the position of its closing brace. Raises :class:`MalformedJson`."""
    at = _skip(text, opening)
    if text[at : at + 1] != "{":
        raise MalformedJson("a JSON object is expected", at)
    at = _skip(text, at + 1)
    if text[at : at + 1] == "}":
        yield at
        return
    while True:
        if text[at : at + 1] != '"':
            raise MalformedJson("a member name in double quotes is expected", at)
        name, at = _value(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise MalformedJson("':' is expected", at)
        start = _skip(text, at + 1)
        value, end = _value(text, start)
        yield Member(name=name, value=value, start=start, end=end)
        at = _skip(text, end)
        match text[at : at + 1]:
            case ",":
                at = _skip(text, at + 1)
            case "}":
                yield at
                return
            case _:
                raise MalformedJson("',' or '}' is expected", at)


def ends_at(text: str, at: int) -> None:
    """Raises :class:`MalformedJson` unless only white space stands from ``at`` on."""
    rest = _skip(text, at)
    if rest != len(text):
        raise MalformedJson("nothing may follow the JSON object", rest)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None, "it matches nothing too"
    return space.end()


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except JSONDecodeError as error:
        raise MalformedJson(error.msg[:1].lower() + error.msg[1:].rstrip(": ").removesuffix(" at"), error.pos) from None
    except _NotANumber as error:
        raise MalformedJson(f"{error} is no JSON value", _constant(text, at)) from None
    except RecursionError:
        raise MalformedJson("it is nested too deeply", at) from None
    except ValueError:
        # CPython converts integers of at most 4300 digits, so that a number can't take quadratic time.
        raise MalformedJson("a number has too many digits", at) from None


def _constant(text: str, at: int) -> int:
    """Where the first NaN or Infinity outside a string stands; the scanner has read all before it."""
    while True:
        found = _NOT_JSON.search(text, at)
        assert found is not None, "the scanner met a constant"
        if found[0] != '"':
            return found.start()
        at = _DECODER.raw_decode(text, found.start())[1]
