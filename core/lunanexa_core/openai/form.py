"""The parts of a ``multipart/form-data`` body, with the places of their values in the bytes.

What one reader takes for the field ``model`` and another for a file's content would let a caller be billed for
one model and run another, so whatever readers are known to differ about is refused: text before the first
boundary, bare line feeds, folded or repeated headers, escaped names, ``name*``. One pass; parts and their heads
are bounded.
Source: RFC 7578 (forms), RFC 2046 section 5.1 (boundaries), RFC 2183 (dispositions).
"""

import re
from typing import Final

import attrs

PARTS_MAX: Final = 64
HEAD_BYTES_MAX: Final = 4_096
_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_CONTENT_TYPE: Final = re.compile(
    rf'multipart/form-data[ \t]*(?:;[ \t]*(?!boundary=){_TOKEN}=(?:{_TOKEN}|"[^"\\]*")[ \t]*)*'
    rf"""(?:;[ \t]*boundary=(?:"([^"\\]+)"|([^";, \t]+)))[ \t]*"""
    rf'(?:;[ \t]*(?!boundary=){_TOKEN}=(?:{_TOKEN}|"[^"\\]*")[ \t]*)*\Z',
    re.IGNORECASE,
)
_BOUNDARY: Final = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]\Z")
_PLAIN: Final = re.compile(r"[0-9A-Za-z'+_.-]+\Z")
_PARAMETER: Final = re.compile(rf'[ \t]*;[ \t]*({_TOKEN})=(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))')


class MalformedForm(ValueError):
    """The body is no form that every reader understands alike. ``position`` is a byte's."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


@attrs.frozen(kw_only=True)
class FormPart:
    """One part: its value stands from ``start`` to ``end``. ``file``: it has a file name."""

    name: str
    file: bool
    start: int
    end: int


def boundary_of(content_type: str) -> str | None:
    """The boundary that a ``multipart/form-data`` content type names, or ``None``."""
    match = _CONTENT_TYPE.match(content_type)
    boundary = None if match is None else match[1] or match[2]
    return boundary if boundary is not None and _BOUNDARY.match(boundary) else None


def form_type(boundary: str) -> str:
    """The content type of a form with this boundary."""
    return (
        f"multipart/form-data; boundary={boundary}"
        if _PLAIN.match(boundary)
        else (f'multipart/form-data; boundary="{boundary}"')
    )


def form_parts(body: bytes, boundary: str) -> list[FormPart]:
    """All parts, in order. Raises :class:`MalformedForm`."""
    delimiter = b"\r\n--" + boundary.encode()
    opening = delimiter[2:]
    if not body.startswith(opening):
        raise MalformedForm("the first boundary is expected", 0)
    parts: list[FormPart] = []
    at = len(opening)
    while (after := body[at : at + 2]) == b"\r\n":
        if len(parts) == PARTS_MAX:
            raise MalformedForm(f"there are more than {PARTS_MAX} parts", at)
        begin = at + 2
        close = body.find(b"\r\n\r\n", begin, begin + HEAD_BYTES_MAX)
        if close < 0:
            raise MalformedForm("the end of a part's head is expected", begin)
        name, file = _disposition(body[begin:close], begin)
        start = close + 4
        end = body.find(delimiter, close + 2)
        if end < 0:
            raise MalformedForm("the closing boundary is missing", len(body))
        if end < start:
            # Whether the blank line's own line end is the boundary's too is what readers differ about.
            raise MalformedForm("a part has no value", start)
        parts.append(FormPart(name=name, file=file, start=start, end=end))
        at = end + len(delimiter)
    if after != b"--":
        raise MalformedForm("a boundary goes on where it should end", at)
    if body[at + 2 :] not in (b"", b"\r\n"):
        raise MalformedForm("nothing may follow the closing boundary", at + 2)
    return parts


def _disposition(head: bytes, position: int) -> tuple[str, bool]:
    """The field's name, and whether it is a file."""
    found: str | None = None
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        raise MalformedForm("a part's head is not UTF-8", position + error.start) from None
    if re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?!\n)|\r\n[ \t]", text):
        raise MalformedForm("a part's head has a bare line end, a control character or a folded line", position)
    for line in text.split("\r\n"):
        name, colon, value = line.partition(":")
        if not colon or not re.fullmatch(_TOKEN, name):
            raise MalformedForm("a part's header has no name", position)
        match name.lower():
            case "content-disposition" if found is None:
                found = value.strip(" \t")
            case "content-disposition":
                raise MalformedForm("a part has two dispositions", position)
            case "content-transfer-encoding" if value.strip(" \t").lower() not in ("binary", "7bit", "8bit"):
                raise MalformedForm("a part is encoded for mail", position)
            case _:
                pass
    return _named(found or "", position)


def _named(disposition: str, position: int) -> tuple[str, bool]:
    kind = re.match(r"form-data", disposition, re.IGNORECASE)
    given: dict[str, str] = {}
    at = 0 if kind is None else kind.end()
    while kind is not None and at < len(disposition):
        parameter = _PARAMETER.match(disposition, at)
        if parameter is None or parameter[1].lower() in given:
            break
        given[parameter[1].lower()] = parameter[3] if parameter[2] is None else parameter[2]
        at = parameter.end()
    name = given.get("name")
    if kind is None or at < len(disposition) or name is None or "name*" in given or "\\" in name:
        raise MalformedForm("a part without a plain form-data name", position)
    return name, bool(given.keys() & {"filename", "filename*"})
