"""Reading a request's head and splicing it: what is changed changes, and not one byte beside it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.canonical import MAX_INTEGER
from lunanexa_core.openai.head import RequestHead, estimate_tokens, reserved_tokens, splice_request
from lunanexa_core.openai.request import peek_request
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.workload import Dialect

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OPTIONS = st.none() | st.fixed_dictionaries(
    {}, optional={"include_usage": st.booleans() | st.none(), "include_obfuscation": st.booleans(), 'é"': JSON}
)
SPACE = st.text(" \t\n\r", max_size=3)


def head_of(body: bytes, dialect: Dialect = Dialect.CHAT) -> RequestHead:
    head = peek_request(dialect, body)
    assert isinstance(head, RequestHead), head
    return head


def refusal_of(body: bytes, dialect: Dialect = Dialect.CHAT) -> Refusal:
    refusal = peek_request(dialect, body)
    assert isinstance(refusal, Refusal), refusal
    assert refusal.outcome is Outcome.INVALID_REQUEST
    return refusal


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A request as a client may write it: any order, any spaces, any other members."""
    members: list[tuple[str, Any]] = [("model", draw(st.text(min_size=1, max_size=20)))]
    stream = draw(st.sampled_from([None, True, False, "absent"]))
    if stream != "absent":
        members.append(("stream", stream))
    if stream is True and draw(st.booleans()):
        members.append(("stream_options", draw(OPTIONS)))
    others = st.text().filter(lambda name: name not in {"model", "stream", "stream_options", "max_tokens", "n"})
    members += draw(st.dictionaries(others, JSON, max_size=3)).items()
    members += draw(st.dictionaries(st.just("max_tokens"), st.integers(0, 2**70), max_size=1)).items()
    ascii_only = draw(st.booleans())
    written = []
    for name, value in draw(st.permutations(members)):
        pair = [draw(SPACE), json.dumps(name, ensure_ascii=ascii_only), draw(SPACE), ":", draw(SPACE)]
        pair += [json.dumps(value, ensure_ascii=ascii_only), draw(SPACE)]
        written.append("".join(pair))
    text = draw(SPACE) + "{" + ",".join(written) + "}" + draw(SPACE)
    return text.encode(errors="surrogatepass")


@given(body=bodies(), served=st.text(), usage=st.booleans(), stream=st.sampled_from([None, True, False]))
def test_a_splice_changes_the_named_members_and_nothing_else(
    body: bytes, served: str, usage: bool, stream: bool | None
) -> None:
    head = peek_request(Dialect.CHAT, body)
    if isinstance(head, Refusal):
        return  # Lone surrogates, which json.dumps writes and UTF-8 has not.
    spliced = b"".join(splice_request(head, body, served_name=served, include_usage=usage, stream=stream))
    expected = json.loads(body)
    expected["model"] = served
    if stream is not None and stream != bool(expected.get("stream")):
        expected["stream"] = stream
    if usage and not head.include_usage:
        expected["stream_options"] = {**(expected.get("stream_options") or {}), "include_usage": True}
    assert json.loads(spliced) == expected
    # Every byte that is no edited value stands where it stood.
    assert spliced.startswith(body[: min(span.start for span in edited(head))])
    assert spliced.endswith(body[head.close :])


def edited(head: RequestHead) -> list[Any]:
    spans = (head.model_span, head.stream_span, head.options_span, head.usage_span)
    return [span for span in spans if span is not None]


@given(bodies())
def test_a_splice_with_nothing_to_change_is_the_identity(body: bytes) -> None:
    head = peek_request(Dialect.CHAT, body)
    if isinstance(head, RequestHead):
        spliced = b"".join(splice_request(head, body, served_name=head.model, include_usage=False))
        written = body[head.model_span.start : head.model_span.end]
        before, after = body[: head.model_span.start], body[head.model_span.end :]
        assert spliced == before + json.dumps(head.model).encode() + after
        assert json.loads(written) == head.model


@given(
    st.binary(max_size=200) | st.text(max_size=200).map(str.encode) | JSON.map(lambda value: json.dumps(value).encode())
)
def test_no_body_raises(body: bytes) -> None:
    for dialect in Dialect:
        assert isinstance(peek_request(dialect, body), RequestHead | Refusal)


@given(body=bodies(), cut=st.integers(0, 400))
def test_a_cut_body_is_refused(body: bytes, cut: int) -> None:
    whole = body.rstrip()
    refusal_of(whole[: min(cut, len(whole) - 1)])


def test_the_tricky_spellings_are_read() -> None:
    body = '{"m\\u006fdel" : "a\\"é", "stream":true , "stream_options":{ "include_usage" : false } }'.encode()
    head = head_of(body)
    assert (head.model, head.stream, head.include_usage) == ('a"é', True, False)
    spliced = b"".join(splice_request(head, body, served_name="x", include_usage=True))
    assert spliced == b'{"m\\u006fdel" : "x", "stream":true , "stream_options":{ "include_usage" : true } }'


def test_options_are_added_where_they_are_missing() -> None:
    body = b'{"model":"a","stream":true,"stream_options":{}}'
    spliced = b"".join(splice_request(head_of(body), body, served_name="a", include_usage=True))
    assert spliced == b'{"model":"a","stream":true,"stream_options":{"include_usage":true}}'
    body = b'{"model":"a","stream":true,"stream_options": null}'
    spliced = b"".join(splice_request(head_of(body), body, served_name="a", include_usage=True))
    assert spliced == b'{"model":"a","stream":true,"stream_options": {"include_usage":true}}'
    body = b'{"model":"a"}'
    spliced = b"".join(splice_request(head_of(body), body, served_name="a", include_usage=True, stream=True))
    assert spliced == b'{"model":"a","stream":true,"stream_options":{"include_usage":true}}'


@pytest.mark.parametrize(
    ("body", "position"),
    [
        (b"", 0),
        (b"[]", 0),
        (b"\xef\xbb\xbf{}", 0),
        (b'{"model":"a"} x', 14),
        (b'{"model":"a",}', 13),
        (b'{"model" "a"}', 9),
        (b'{"model":"a" "b":1}', 13),
        (b'{"model":NaN}', 9),
        (b'{"model":"a","x":["NaN",-Infinity]}', 24),
        ('{"é":"é","x":tru}'.encode(), 15),
        (b'{"model":"a","x":' + b"[" * 100_000, 17),
        (b'{"model":"a","x":' + b"9" * 5_000 + b"}", 17),
    ],
)
def test_broken_json_is_told_by_its_byte(body: bytes, position: int) -> None:
    assert refusal_of(body).message.endswith(f"at byte position {position}.")


def test_broken_utf_8_is_told_by_its_byte() -> None:
    assert refusal_of(b'{"model":"\xff"}').message.endswith("at position 10.")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{}", "model"),
        (b'{"model":7}', "model"),
        (b'{"model":""}', "model"),
        (b'{"model":"' + b"x" * 257 + b'"}', "model"),
        (b'{"model":"\\ud800"}', "model"),
        (b'{"model":"a","model":"b"}', "model"),
        (b'{"model":"a","mode\\u006c":"b"}', "model"),
        (b'{"model":"a","stream":1}', "stream"),
        (b'{"model":"a","stream":true,"stream":false}', "stream"),
        (b'{"model":"a","stream_options":{}}', "stream_options"),
        (b'{"model":"a","stream":true,"stream_options":[]}', "stream_options"),
        (b'{"model":"a","stream":true,"stream_options":{"include_usage":1}}', "stream_options.include_usage"),
        (
            b'{"model":"a","stream":true,"stream_options":{"include_usage":true,"include_usage":false}}',
            "stream_options.include_usage",
        ),
        (b'{"model":"a","max_tokens":1.5}', "max_tokens"),
        (b'{"model":"a","max_tokens":true}', "max_tokens"),
        (b'{"model":"a","max_completion_tokens":"9"}', "max_completion_tokens"),
        (b'{"model":"a","n":0}', "n"),
        (b'{"model":"a","n":[]}', "n"),
    ],
)
def test_a_wrong_field_is_named(body: bytes, param: str) -> None:
    assert refusal_of(body).param == param


@pytest.mark.parametrize("dialect", [Dialect.EMBEDDINGS, Dialect.RERANK])
def test_vectors_and_scores_have_no_stream(dialect: Dialect) -> None:
    assert refusal_of(b'{"model":"a","stream":true}', dialect).param == "stream"
    assert not head_of(b'{"model":"a","stream":false}', dialect).stream


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"model":"a","previous_response_id":"resp_1"}', "previous_response_id"),
        (b'{"model":"a","conversation":{"id":"conv_1"}}', "conversation"),
        (b'{"model":"a","background":true}', "background"),
        (b'{"model":"a","background":false,"background":true}', "background"),
    ],
)
def test_what_needs_an_answer_that_was_kept_is_refused_with_the_way(body: bytes, param: str) -> None:
    refusal = refusal_of(body, Dialect.RESPONSES)
    assert refusal.param == param
    assert "no answer is kept here" in refusal.message or "twice" in refusal.message
    assert head_of(body).model == "a"


def test_a_response_names_its_limit_and_keeps_its_options() -> None:
    body = (
        b'{"model":"a","stream":true,"max_output_tokens":7,"max_tokens":9,"background":null,"store":true,'
        b'"previous_response_id":null,"stream_options":{"include_obfuscation":false}}'
    )
    head = head_of(body, Dialect.RESPONSES)
    assert (head.stream, head.max_tokens, head.choices) == (True, 7, 1)
    spliced = b"".join(splice_request(head, body, served_name="a", include_usage=True, stream=True))
    assert spliced == body
    unary = b"".join(splice_request(head, body, served_name="a", include_usage=True, stream=False))
    assert unary == body.replace(b"true", b"false", 1)


def test_a_message_may_have_its_limit_only() -> None:
    head = head_of(b'{"model":"a","max_tokens":7,"n":5,"prompt":["a","b"]}', Dialect.MESSAGES)
    assert (head.max_tokens, head.choices) == (7, 1)


def test_speech_streams_by_a_word_of_its_own() -> None:
    for told, stream in ((b'"sse"', True), (b'"audio"', False), (b"null", False)):
        assert head_of(b'{"model":"a","stream_format":' + told + b"}", Dialect.AUDIO_SPEECH).stream is stream
    for wrong in (b'"x"', b"true", b"[]"):
        assert (
            refusal_of(b'{"model":"a","stream_format":' + wrong + b"}", Dialect.AUDIO_SPEECH).param == "stream_format"
        )


@pytest.mark.parametrize(
    ("prompt", "choices"),
    [('"a"', 2), ("null", 2), ("[]", 2), ("[1,2,3]", 2), ('["a","b","c"]', 6), ("[[1,2],[3]]", 4), ("7", 2)],
)
def test_choices_are_those_of_all_prompts(prompt: str, choices: int) -> None:
    body = b'{"model":"a","n":2,"prompt":' + prompt.encode() + b"}"
    assert head_of(body, Dialect.COMPLETIONS).choices == choices
    assert head_of(body).choices == 2


def test_what_is_reserved_is_the_body_and_what_it_asks_for() -> None:
    body = b'{"model":"a","max_tokens":5,"n":2}'
    asked = estimate_tokens(len(body))
    assert asked == 12
    assert reserved_tokens(head_of(body), 100) == asked + 10
    assert reserved_tokens(head_of(body, Dialect.EMBEDDINGS), 100) == asked
    body = b'{"model":"a","max_tokens":5,"max_completion_tokens":7}'
    assert reserved_tokens(head_of(body), 100) == estimate_tokens(len(body)) + 7
    for body in (b'{"model":"a"}', b'{"model":"a","max_tokens":-1}'):
        assert reserved_tokens(head_of(body), 100) == estimate_tokens(len(body)) + 100
    # More than the usual is settled when it was used, not reserved.
    body = b'{"model":"a","max_tokens":5000}'
    assert reserved_tokens(head_of(body), 100) == estimate_tokens(len(body)) + 100
    # Whatever is asked can be written in a canonical document.
    body = b'{"model":"a","max_tokens":' + b"9" * 100 + b"}"
    assert reserved_tokens(head_of(body), MAX_INTEGER) == MAX_INTEGER
