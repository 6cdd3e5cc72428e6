"""Past a value of a client's JSON, in bounded steps and without building it.

Runs of values go by compiled patterns, small containers by the standard library's scanner, and whatever is left goes
token by token; only there a fault is told. Strict: no NaN, no control characters in strings, bounded nesting and
digits. No step takes more than a fraction of a millisecond, for a call into C holds the interpreter, and with it
every other thread. Small deep containers without end are the slowest: some 0.3 microseconds a byte.
Grammar: RFC 8259.
"""

import re
from json import JSONDecoder
from typing import Any, Final

NESTING_MAX: Final = 512
DIGITS_MAX: Final = 4_300
"""Python's own limit: a longer integer takes quadratic time to read."""

STEP_BYTES: Final = 16 * 1024
_SMALL_BYTES: Final = 1_024
_RETRY_BYTES: Final = 128
"""Between two tries of a container that was not small: so each byte is tried a few times at most, however deep."""
_FLAT: Final = 3
"""Levels of nesting that a pattern covers at most; with each its size doubles."""

_DIGITS: Final = rb"[0-9]{1,%d}+" % DIGITS_MAX
BLANK: Final = rb"[ \t\n\r]*+"
_PLAIN: Final = rb"[ !#-\[\]-\xff]*+"
_ESCAPE: Final = rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
# An atomic group around a greedy one: Python before 3.11.5 matches possessive groups wrongly.
_STRING: Final = rb'"' + _PLAIN + rb"(?>(?:" + _ESCAPE + _PLAIN + rb')*)"'
_NUMBER: Final = rb"-?(?:0|[1-9][0-9]{0,%d}+)(?:\." % (DIGITS_MAX - 1) + _DIGITS + rb")?(?:[eE][+-]?" + _DIGITS + rb")?"
_SCALAR: Final = _STRING + rb"|" + _NUMBER + rb"|true|false|null"


def _nested(levels: int) -> bytes:
    """A value of at most so many levels."""
    value = _SCALAR
    for _ in range(levels):
        item, member = (
            BLANK + part + rb"(?>" + value + rb")" + BLANK for part in (b"", _STRING + BLANK + b":" + BLANK)
        )
        array = rb"\[(?>(?:" + item + rb"(?:,(?!" + BLANK + rb"\])|(?=\])))*)" + BLANK + rb"\]"
        members = rb"\{(?>(?:" + member + rb"(?:,(?!" + BLANK + rb"\})|(?=\})))*)" + BLANK + rb"\}"
        value = rb"(?>" + _SCALAR + rb"|" + members + rb"|" + array + rb")"
    return value


_NEXT: Final = BLANK + rb"(?:,|(?=[\]}])())"
"""Behind an item or member: a comma, else it was the last, which the group tells."""
_VALUE: Final = re.compile(rb"(?>" + _nested(1) + rb")(?=[ \t\n\r,\]}])")
# Small integers first: they are what long lists are made of.
_ITEMS: Final = re.compile(rb"(?>(?:[1-9][0-9]{0,8}+,|" + BLANK + _nested(_FLAT) + _NEXT + rb")*)")
_MEMBERS: Final = re.compile(
    rb"(?>(?:" + BLANK + _STRING + BLANK + rb":" + BLANK + _nested(_FLAT - 1) + _NEXT + rb")*)"
)
_ARRAYS: Final = re.compile(rb"(?>(?:\[" + BLANK + rb"(?=[^\]]))*)")
_CLOSING: Final = re.compile(rb"[\]}]*+")
_CONTENT: Final = re.compile(rb"(?>(?:[ !#-\[\]-\xff]++|" + _ESCAPE + rb")*)")
_SPACE: Final = re.compile(BLANK)
_TOKEN: Final = re.compile(_NUMBER + rb"|true|false|null")
_CONSTANT: Final = re.compile(rb"NaN|-?Infinity")
_BLANKS: Final = frozenset((b" ", b"\t", b"\n", b"\r"))
_SPECIAL: Final = bytes(range(32)) + b'"\\'


def _refuse_constant(text: str) -> Any:
    raise ValueError(text)


DECODER: Final = JSONDecoder(parse_constant=_refuse_constant)


class MalformedJson(ValueError):
    """The bytes are no strict JSON object, or one beyond the bounds above. ``position`` is a byte's."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


def value_end(data: bytes, start: int) -> int:
    """Where the value at ``start`` ends. Raises :class:`MalformedJson`."""
    flat = _VALUE.match(data, start, start + STEP_BYTES)
    if flat is not None:
        return flat.end()
    closers = bytearray()
    at, over, retry_at = start, False, start
    while True:
        match data[at : at + 1] if not over else None:
            case None:
                pass
            case b'"':
                at, over = _string_end(data, at), True
            case b"[" | b"{" if at < retry_at:
                at, over = _open(data, at, closers)
            case b"[" | b"{":
                end = _small_end(data, at, len(closers))
                if end is None:
                    retry_at = at + _RETRY_BYTES
                    at, over = _open(data, at, closers)
                else:
                    at, over = end, True
            case _:
                at, over = _scalar_end(data, at), True
        if len(closers) > NESTING_MAX:
            raise MalformedJson("it is nested too deeply", start)
        if over:
            at = _close(data, at, closers)
            if not closers:
                return at
            at += 1
        at, over = _pass(data, at, closers)


def _small_end(data: bytes, at: int, depth: int) -> int | None:
    """Over a small container of any nesting, by the standard library's scanner."""
    piece = data[at : at + _SMALL_BYTES]
    try:
        # What is no ASCII stands in strings only, so its meaning does not matter, and each byte is a character.
        end = DECODER.raw_decode(piece.decode("latin-1"))[1]
    except (ValueError, RecursionError):
        return None  # It is larger, or wrong: what is wrong is told by who goes token by token.
    brackets = piece.count(b"[", 0, end) + piece.count(b"{", 0, end)
    return None if depth + brackets > NESTING_MAX else at + end


def _open(data: bytes, at: int, closers: bytearray) -> tuple[int, bool]:
    """Into the containers that open here; else over an empty one."""
    arrays = _match(_ARRAYS, data, at)
    if arrays > at:
        closers += b"]" * data.count(b"[", at, arrays)
        return arrays, False
    closer = b"]" if data[at : at + 1] == b"[" else b"}"
    at = skip(data, at + 1)
    if data[at : at + 1] == closer:
        return at + 1, True
    closers += closer
    return at, False


def _pass(data: bytes, at: int, closers: bytearray) -> tuple[int, bool]:
    """From an item or a member on, over all that the patterns match: to a value that they don't, or over the last."""
    is_array = closers.endswith(b"]")
    if len(closers) + _FLAT <= NESTING_MAX:
        pattern = _ITEMS if is_array else _MEMBERS
        while (found := pattern.match(data, at, at + STEP_BYTES)) is not None and found.end() > at:
            at = found.end()
            if found.lastindex is not None:
                return at, True
    at = skip(data, at)
    return at if is_array else name_end(data, at)[1], False


def _close(data: bytes, at: int, closers: bytearray) -> int:
    """Out of the containers that close here; to the comma behind a value, or to the end of all."""
    while closers:
        run = data[at : _match(_CLOSING, data, at, len(closers))]
        if run and run == closers[: -len(run) - 1 : -1]:
            del closers[-len(run) :]
            at += len(run)
            continue
        at = skip(data, at)
        mark = data[at : at + 1]
        if mark == b",":
            return at
        if mark != closers[-1:]:
            raise MalformedJson(f"',' or '{closers[-1:].decode()}' is expected", at)
        closers.pop()
        at += 1
    return at


def _match(pattern: re.Pattern[bytes], data: bytes, at: int, limit: int = STEP_BYTES) -> int:
    """Past what the pattern matches within the limit, be it nothing."""
    found = pattern.match(data, at, at + limit)
    assert found is not None, "it matches nothing too"
    return found.end()


def run(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    """Past all that the pattern matches, a step at a time."""
    while (end := _match(pattern, data, at, STEP_BYTES)) > at:
        at = end
    return at


def skip(data: bytes, at: int) -> int:
    return run(_SPACE, data, at) if data[at : at + 1] in _BLANKS else at


def name_end(data: bytes, at: int) -> tuple[int, int]:
    """Where the member name at ``at`` ends, and where its value begins."""
    if data[at : at + 1] != b'"':
        raise MalformedJson("a member name in double quotes is expected", at)
    end = _string_end(data, at)
    at = skip(data, end)
    if data[at : at + 1] != b":":
        raise MalformedJson("':' is expected", at)
    return end, skip(data, at + 1)


def _string_end(data: bytes, start: int) -> int:
    at = start + 1
    while True:
        quote = data.find(b'"', at, at + STEP_BYTES)
        piece = data[at : at + STEP_BYTES if quote < 0 else quote]
        # Deleting what is not plain tells, faster than any search, that there is nothing of it.
        if len(piece.translate(None, _SPECIAL)) < len(piece):
            at = run(_CONTENT, data, at)
            quote = at if data[at : at + 1] == b'"' else -1
        elif quote < 0 and piece:
            at += len(piece)
            continue
        if quote >= 0:
            return quote + 1
        match data[at : at + 1]:
            case b"":
                raise MalformedJson("a string does not end", start)
            case b"\\":
                raise MalformedJson("a wrong escape", at)
            case byte if byte < b" ":
                raise MalformedJson("a control character in a string must be escaped", at)


def _scalar_end(data: bytes, at: int) -> int:
    found = _TOKEN.match(data, at)
    if found is None:
        constant = _CONSTANT.match(data, at)
        raise MalformedJson(
            "a value is expected" if constant is None else f"{constant[0].decode()} is no JSON value", at
        )
    if data[found.end() : found.end() + 1].isdigit() and len(found[0]) >= DIGITS_MAX:
        raise MalformedJson("a number has too many digits", at)
    return found.end()
