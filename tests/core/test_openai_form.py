"""Forms: what two readers could read differently is refused, and of what is read not one byte moves."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.openai.form import (
    HEAD_BYTES_MAX,
    PARTS_MAX,
    MalformedForm,
    boundary_of,
    form_parts,
    form_type,
)
from lunanexa_core.openai.head import RequestHead, reserved_tokens, splice_request
from lunanexa_core.openai.request import peek_request
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.workload import Dialect

BOUNDARY = "x0-Y"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"
SOUND = Dialect.AUDIO_TRANSCRIPTIONS
NAMES = st.text(st.characters(exclude_characters='"\\', exclude_categories=("Cc", "Cs")), min_size=1, max_size=8)


def part(name: str, value: bytes, file: str | None = None, more: str = "") -> bytes:
    disposition = f'Content-Disposition: form-data; name="{name}"' + ("" if file is None else f'; filename="{file}"')
    return f"{disposition}\r\n{more}\r\n".encode() + value + b"\r\n"


def form(*parts: bytes, boundary: str = BOUNDARY, end: bytes = b"--\r\n") -> bytes:
    delimiter = b"--" + boundary.encode()
    return b"".join(delimiter + b"\r\n" + part for part in parts) + delimiter + end


MODEL = part("model", b"tiny")
FILE = part("file", b"RIFF\r\n\r\n--x0\0", "a.wav", "Content-Type: audio/wav\r\n")


@given(
    fields=st.lists(st.tuples(NAMES, st.binary(max_size=40), st.none() | NAMES), max_size=5),
    boundary=st.text("09AZaz'()+_,./:=?-", min_size=1, max_size=70),
)
def test_every_part_is_found_where_it_stands(fields: list[tuple[str, bytes, str | None]], boundary: str) -> None:
    body = form(*(part(*field) for field in fields), boundary=boundary)
    if body.count(b"\r\n--" + boundary.encode()) != len(fields):
        return  # A value holds the boundary: no client writes such a form.
    read = boundary_of(form_type(boundary))
    assert read == boundary
    found = form_parts(body, read) if fields else []
    assert [(one.name, body[one.start : one.end], one.file) for one in found] == [
        (name, value, file is not None) for name, value, file in fields
    ]


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda data: form(MODEL, data, FILE)))
def test_no_body_raises_anything_else(body: bytes) -> None:
    with contextlib.suppress(MalformedForm):
        form_parts(body, BOUNDARY)
    assert isinstance(peek_request(SOUND, body, TYPE), RequestHead | Refusal)


@given(cut=st.integers(0, 300))
def test_a_cut_form_is_refused(cut: int) -> None:
    body = form(MODEL, FILE, end=b"--")
    with pytest.raises(MalformedForm):
        form_parts(body[: min(cut, len(body) - 1)], BOUNDARY)


@pytest.mark.parametrize(
    "body",
    [
        b"preamble\r\n" + form(MODEL),
        b"\r\n" + form(MODEL),
        form(MODEL).replace(b"\r\n", b"\n"),
        form(MODEL, end=b"--\r\nepilogue"),
        form(MODEL, end=b"-"),
        form(MODEL).replace(b"--x0-Y\r\n", b"--x0-Y \r\n"),
        form(part("file", b"\r\n--x0-Ymore", "a")),
        form(b"\r\n\r\nvalue\r\n"),
        form(b"Content-Type: text/plain\r\n\r\nvalue\r\n"),
        form(b"Content-Disposition: attachment; name=model\r\n\r\nv\r\n"),
        form(b"Content-Disposition: form-data\r\n\r\nv\r\n"),
        form(b'Content-Disposition: form-data; name="mo\\del"\r\n\r\nv\r\n'),
        form(b"Content-Disposition: form-data; name=a; name*=UTF-8''model\r\n\r\nv\r\n"),
        form(b"Content-Disposition: form-data; name=a; name=model\r\n\r\nv\r\n"),
        form(b"Content-Disposition: form-data;\r\n name=model\r\n\r\nv\r\n"),
        form(b"Content-Disposition: form-data; name=a\nContent-Disposition: form-data; name=model\r\n\r\nv\r\n"),
        form(b"Content-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=model\r\n\r\nv\r\n"),
        form(b"Content-Disposition : form-data; name=model\r\n\r\nv\r\n"),
        form(b"Content-Disposition: form-data; name=model; trailing\r\n\r\nv\r\n"),
        form(b'Content-Disposition: form-data; name="\xff"\r\n\r\nv\r\n'),
        form(part("model", b"dGlueQ==", more="Content-Transfer-Encoding: base64\r\n")),
        form(b"Content-Disposition: form-data; name=model\r\n"),
        form(part("a", b"", more=f"X: {'x' * HEAD_BYTES_MAX}\r\n")),
        form(*[part("a", b"")] * (PARTS_MAX + 1)),
    ],
)
def test_what_readers_differ_about_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedForm):
        form_parts(body, BOUNDARY)
    refusal = peek_request(SOUND, body, TYPE)
    assert isinstance(refusal, Refusal)
    assert refusal.outcome is Outcome.INVALID_REQUEST
    assert "at byte position" in refusal.message


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (TYPE, BOUNDARY),
        ('Multipart/Form-Data;charset=utf-8 ; Boundary="a b"', "a b"),
        ("multipart/form-data; boundary=a; charset=utf-8", "a"),
        ("multipart/form-data", None),
        ("multipart/form-data; boundary=", None),
        ("multipart/form-data; boundary=a; boundary=b", None),
        ('multipart/form-data; boundary="a\\"b"', None),
        ("multipart/form-data; boundary=" + "a" * 71, None),
        ("multipart/form-data; boundary=a\r\nx", None),
        ("multipart/mixed; boundary=a", None),
        ("application/json", None),
    ],
)
def test_the_boundary_is_read_of_the_content_type(content_type: str, boundary: str | None) -> None:
    assert boundary_of(content_type) == boundary
    if boundary is None:
        refusal = peek_request(SOUND, form(MODEL), content_type)
        assert isinstance(refusal, Refusal)
        assert refusal.param == "content-type"


def test_the_engine_is_told_the_boundary_that_was_read() -> None:
    for boundary in ("a b", "a=?", "'()", BOUNDARY):
        assert boundary_of(form_type(boundary)) == boundary
    head = peek_request(SOUND, form(MODEL), TYPE + "; charset=utf-8")
    assert isinstance(head, RequestHead)
    assert head.content_type == TYPE


@given(served=st.text(st.characters(exclude_categories=["Cs"]), max_size=20), streams=st.booleans())
def test_a_splice_exchanges_the_model_and_nothing_else(served: str, streams: bool) -> None:
    stream = part("stream", b"true" if streams else b"false")
    body = form(FILE, MODEL, stream)
    head = peek_request(SOUND, body, TYPE)
    assert isinstance(head, RequestHead)
    assert (head.model, head.stream, head.include_usage) == ("tiny", streams, True)
    spliced = b"".join(splice_request(head, body, served_name=served, include_usage=True, stream=streams))
    assert spliced == form(FILE, part("model", served.encode()), stream)


@pytest.mark.parametrize(
    ("parts", "param"),
    [
        ([FILE], "model"),
        ([MODEL, part("model", b"other")], "model"),
        ([part("model", b"tiny", "model.txt")], "model"),
        ([part("model", b"")], "model"),
        ([part("model", b"\xff")], "model"),
        ([part("model", b"x" * 257)], "model"),
        ([MODEL, part("stream", b"maybe")], "stream"),
        ([MODEL, part("stream", b"true"), part("stream", b"false")], "stream"),
    ],
)
def test_a_wrong_field_is_named(parts: list[bytes], param: str) -> None:
    refusal = peek_request(SOUND, form(*parts), TYPE)
    assert isinstance(refusal, Refusal)
    assert refusal.param == param


def test_sound_is_reserved_as_sound() -> None:
    body = form(MODEL, part("file", b"s" * 1_600_000, "a.mp3"))
    head = peek_request(SOUND, body, TYPE)
    assert isinstance(head, RequestHead)
    assert 1_000 <= reserved_tokens(head, 0) <= 1_001
    assert reserved_tokens(head, 100) == reserved_tokens(head, 0) + 100
