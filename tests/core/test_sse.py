"""The SSE splitter: how a stream is cut into reads changes nothing."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lunanexa_core.sse import SseEventTooLong, SseSplitter, data_of

LIMIT_BYTES = 1 << 20

streams = st.lists(
    st.sampled_from([b"data: x", b"data:", b": ping", b"event: e", b"id", b"\n", b"\r\n", b"\r", b"\n\n", b"", b"\xff"])
).map(b"".join)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


def split_all(pieces: list[bytes]) -> tuple[list[bytes], bytes]:
    splitter = SseSplitter(LIMIT_BYTES)
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return events, splitter.rest()


@given(streams, st.lists(st.integers(0, 1000), max_size=20))
@example(b"data: x\r\n\r\ndata: y\n\r\n", list(range(30)))
def test_any_chunking_gives_the_same_events(stream: bytes, places: list[int]) -> None:
    events, rest = split_all(cut(stream, places))
    assert (events, rest) == split_all([stream])
    assert b"".join(events) + rest == stream


@given(streams)
def test_every_event_holds_exactly_one_blank_line_at_its_end(stream: bytes) -> None:
    events, rest = split_all([stream])
    for event in events:
        assert event.endswith((b"\n\n", b"\n\r\n"))
        assert b"\n\n" not in event[:-1]
        assert b"\n\r\n" not in event[:-1]
    assert b"\n\n" not in rest
    assert b"\n\r\n" not in rest


def test_events_of_a_real_stream() -> None:
    events, rest = split_all([b'data: {"a":1}\n\n: ping\n\nevent: e\r\ndata: b\r\ndata:c\r\n\r\ndata: [DONE]\n\nda'])
    assert [data_of(event) for event in events] == [b'{"a":1}', None, b"b\nc", b"[DONE]"]
    assert rest == b"da"


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: x\n\n", b"x"),
        (b"data: x\r\n\r\n", b"x"),
        (b"data:x\n\n", b"x"),
        (b"data:  x\n\n", b" x"),
        (b"data\n\n", b""),
        (b"data:\n\n", b""),
        (b"data: \n\n", b""),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"data: a\ndata:\n\n", b"a\n"),
        (b"\ndata: x\n\n", b"x"),
        (b"id: 7\ndata: x: y\n\n", b"x: y"),
        (b"dataset: x\n\n", None),
        (b": comment\n\n", None),
        (b"\n\n", None),
    ],
)
def test_data_of(event: bytes, data: bytes | None) -> None:
    assert data_of(event) == data


@given(st.integers(1, 40), st.lists(st.integers(0, 100), max_size=10))
def test_the_limit_does_not_depend_on_the_chunking(length: int, places: list[int]) -> None:
    long = b"d" * length + b"\n\n"
    splitter = SseSplitter(20)
    got: list[bytes] = []
    try:
        for piece in cut(b"data: x\n\n" + long, places):
            got += splitter.feed(piece)
    except SseEventTooLong as error:
        got += error.events
        assert len(long) > 20
    else:
        assert len(long) <= 20
    assert got[0] == b"data: x\n\n"
    assert got[1:] == ([long] if len(long) <= 20 else [])
