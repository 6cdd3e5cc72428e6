"""Frames: what is written is read again, and nothing that comes can break the reader."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.canonical import MAX_INTEGER
from lunanexa_core.contract.frame_text import (
    FrameProblem,
    read_client_frame,
    read_server_frame,
    write_completed,
    write_event,
    write_frame,
)
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
    Resume,
    ServerFrame,
    Submit,
)
from lunanexa_core.ids import WorkloadId

identifiers = st.text("abcXYZ019-_.:", min_size=1, max_size=256)
# Any code point: an engine may cut a surrogate pair in two.
texts = st.text(st.characters(exclude_categories=()), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, json_values, max_size=4)
sequences = st.integers(1, MAX_INTEGER)
tokens = st.text("abc.~/+=09", min_size=1, max_size=1_024)

client_frames: st.SearchStrategy[ClientFrame] = st.one_of(
    st.builds(
        Submit,
        id=identifiers,
        request=objects,
        endpoint=st.none() | st.just("chat/completions"),
        resumable=st.booleans(),
    ),
    st.builds(Cancel, identifiers),
    st.builds(Credit, identifiers, st.integers(1, CREDITS_MAX)),
    st.builds(Resume, identifiers, st.integers(0, MAX_INTEGER), tokens),
)
server_frames: st.SearchStrategy[ServerFrame] = st.one_of(
    st.builds(
        Accepted,
        id=identifiers,
        workload_id=identifiers.map(WorkloadId),
        queue_position=st.none() | st.integers(0, MAX_INTEGER),
        resume_token=st.none() | tokens,
    ),
    st.builds(Event, identifiers, sequences, json_values),
    st.builds(Completed, identifiers, sequences, objects),
    st.builds(Failed, identifiers, objects.map(lambda rest: {**rest, "code": "internal", "message": "m"})),
    st.builds(Cancelled, identifiers, st.none() | objects),
    st.builds(Goaway, st.integers(0, MAX_INTEGER)),
)


@given(client_frames)
def test_client_frames_come_back(frame: ClientFrame) -> None:
    text = write_frame(frame)
    text.encode()
    assert read_client_frame(text) == frame
    assert isinstance(read_server_frame(text), FrameProblem)


@given(server_frames)
def test_server_frames_come_back(frame: ServerFrame) -> None:
    text = write_frame(frame)
    text.encode()
    assert read_server_frame(text) == frame
    assert isinstance(read_client_frame(text), FrameProblem)


@given(st.text(max_size=40) | json_values.map(json.dumps))
def test_any_text_is_a_frame_or_a_problem(text: str) -> None:
    for result in (read_client_frame(text), read_server_frame(text)):
        assert isinstance(result, FrameProblem)
        assert result.message


@given(st.one_of(client_frames, server_frames), st.data())
def test_a_frame_with_one_member_exchanged_never_breaks_the_reader(
    frame: ClientFrame | ServerFrame, data: st.DataObject
) -> None:
    document: dict[str, Any] = json.loads(write_frame(frame))
    document[data.draw(st.sampled_from(sorted(document)))] = data.draw(json_values)
    text = json.dumps(document)
    for read in (read_client_frame, read_server_frame):
        result = read(text)
        if not isinstance(result, FrameProblem):
            text_again = write_frame(result)
            assert read(text_again) == result


@pytest.mark.parametrize(
    ("text", "param", "frame_id"),
    [
        ('{"type":"submit","id":"a"}', "request", "a"),
        ('{"type":"submit","id":"a","request":[]}', "request", "a"),
        ('{"type":"submit","id":"a","request":{},"resumable":1}', "resumable", "a"),
        ('{"type":"submit","id":"a","request":{},"endpoint":""}', "endpoint", "a"),
        ('{"type":"submit","id":"a b","request":{}}', "id", None),
        ('{"type":"submit","id":"' + "a" * 257 + '","request":{}}', "id", None),
        ('{"type":"credit","id":"a","events":0}', "events", "a"),
        ('{"type":"credit","id":"a","events":65537}', "events", "a"),
        ('{"type":"credit","id":"a","events":true}', "events", "a"),
        ('{"type":"credit","id":"a","events":1.0}', "events", "a"),
        ('{"type":"resume","id":"a","after":-1,"token":"t"}', "after", "a"),
        ('{"type":"resume","id":"a","after":9007199254740992,"token":"t"}', "after", "a"),
        ('{"type":"resume","id":"a","after":0}', "token", "a"),
        ('{"type":"event","id":"a","seq":1,"data":1}', "type", "a"),
        ('{"type":["cancel"],"id":"a"}', "type", "a"),
        ('{"type":"cancel"}', "id", None),
        ('{"type":"cancel","id":"a","id":"a"}', None, None),
        ('{"type":"submit","id":"a","request":{"t":NaN}}', None, None),
        ('{"type":"submit","id":"a","request":{"t":' + "9" * 5_000 + "}}", None, None),
        ('{"type":"submit","id":"a","request":{"t":' + "[" * 100_000 + "}}", None, None),
        ("[]", None, None),
        ("", None, None),
    ],
)
def test_a_problem_names_its_member_and_its_workload(text: str, param: str | None, frame_id: str | None) -> None:
    problem = read_client_frame(text)
    assert isinstance(problem, FrameProblem)
    assert (problem.param, problem.id) == (param, frame_id)
    assert param is None or param in problem.message


def test_a_failed_frame_needs_a_code() -> None:
    problem = read_server_frame('{"type":"failed","id":"a","error":{"message":"m"}}')
    assert isinstance(problem, FrameProblem)
    assert problem.param == "error.code"


def test_what_an_engine_writes_ends_no_connection() -> None:
    frame = read_server_frame('{"type":"event","id":"a","seq":1,"data":{"logprob":-Infinity,"n":1,"n":2}}')
    assert frame == Event("a", 1, {"logprob": float("-inf"), "n": 2})


def test_half_of_a_pair_is_carried_as_an_escape() -> None:
    frame = Event("a", 1, "ä\ud83d")
    text = write_frame(frame)
    assert text.isascii()
    assert read_server_frame(text) == frame
    assert "ä" in write_frame(Event("a", 1, "ä"))


def test_frames_around_documents_that_are_text_already() -> None:
    assert read_server_frame(write_event("a", 1, '{"x": 1e0}')) == Event("a", 1, {"x": 1.0})
    assert read_server_frame(write_completed("a", 2, "{}")) == Completed("a", 2, {})


def test_a_submission_needs_no_more_than_its_request() -> None:
    assert read_client_frame('{"type":"submit","id":"a","request":{}}') == Submit(id="a", request={})
    cancelled = read_server_frame('{"type":"cancelled","id":"a","receipt":[]}')
    assert isinstance(cancelled, FrameProblem)
    assert cancelled.param == "receipt"


def test_members_of_later_versions_are_passed_over() -> None:
    assert read_client_frame('{"type":"cancel","id":"a","since":1}') == Cancel("a")


def test_a_document_without_a_json_form_is_not_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_frame(Event("a", 1, {"logprob": float("nan")}))


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(Resume("a", 0, "secret"))
    assert "secret" not in repr(Accepted(id="a", workload_id=WorkloadId("w"), resume_token="secret"))


@given(identifiers, sequences, json_values, objects)
def test_json_text_passes_into_a_frame_as_it_is(name: str, seq: int, data: Any, response: dict[str, Any]) -> None:
    text = json.dumps(data)
    assert text in write_event(name, seq, text)
    assert read_server_frame(write_event(name, seq, text)) == Event(name, seq, data)
    assert read_server_frame(write_completed(name, seq, json.dumps(response))) == Completed(name, seq, response)
