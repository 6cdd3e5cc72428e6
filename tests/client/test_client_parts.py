"""Addresses, settings, waits, and what is read of answers."""

import subprocess
import sys
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_client.address import parse_address
from lunanexa_client.answers import AnswerHead, head_of, models_of, page_of, text_of, usage_of
from lunanexa_client.errors import ConnectionFailed, ErrorFacts, LunaNexaError, ProtocolError
from lunanexa_client.refusals import error_of_answer
from lunanexa_client.retries import wait_ms
from lunanexa_client.settings import ClientSettings, Retries, client_settings
from lunanexa_core.allowance import Allowance
from lunanexa_core.workload import Usage

MEMBERS = (
    *(
        "error",
        "code",
        "message",
        "type",
        "param",
        "retryable",
        "retry_after_ms",
        "receipt",
        "usage",
        "input",
        "cached",
    ),
    *("prompt_tokens", "prompt_tokens_details", "choices", "delta", "content", "data", "id", "meta", "next_cursor"),
    "cached",
)
HEADERS = (
    *("retry-after", "retry-after-ms", "x-should-retry", "x-request-id", "x-lunanexa-queue-ms"),
    *("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
)
SERVERS = {"quart", "quart_trio", "hypercorn", "click", "rich", "cryptography", "structlog", "psycopg", "cattrs"}


def test_importing_it_is_light() -> None:
    program = "import sys, lunanexa_client; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "trio" in loaded
    assert not (SERVERS | {"trio_websocket", "wsproto", "asyncio"}) & set(loaded)


@pytest.mark.parametrize(
    ("url", "shown", "prefix"),
    [
        ("http://127.0.0.1:8400/v1", "http://127.0.0.1:8400", ""),
        ("http://127.0.0.1:8400", "http://127.0.0.1:8400", ""),
        ("https://models.example/", "https://models.example:443", ""),
        ("http://[::1]:8400/v1/", "http://[::1]:8400", ""),
        ("https://example/luna/v1", "https://example:443/luna", "/luna"),
        ("HTTP://Example", "http://example:80", ""),
    ],
)
def test_addresses(url: str, shown: str, prefix: str) -> None:
    address = parse_address(url)
    assert (str(address), address.prefix) == (shown, prefix)


@pytest.mark.parametrize(
    "url",
    [
        *("", "127.0.0.1:8400", "ftp://x", "http://", "http://u:hunter2@x", "http://x:port", "http://x:99999"),
        *("http://x/v1?a=hunter2", "http://x/a b", "http://x/ä", "http://[::1", "http://x/#hunter2"),
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match="base_url") as caught:
        parse_address(url)
    assert "hunter2" not in str(caught.value)


@given(st.text())
def test_any_text_is_an_address_or_refused(url: str) -> None:
    try:
        address = parse_address(url)
    except ValueError:
        return
    assert parse_address(f"{address}/v1") == address


def settings_of(*, base_url: str | None = None, api_key: str | None = None, **environment: str) -> ClientSettings:
    return client_settings(base_url, api_key, ca_file=None, deadline_ms=None, max_retries=None, environment=environment)


def test_settings_come_from_arguments_then_the_environment_then_defaults() -> None:
    nothing = settings_of()
    assert (str(nothing.address), nothing.api_key) == ("http://127.0.0.1:8400", None)
    found = settings_of(LUNANEXA_URL="http://a:1", LUNANEXA_TOKEN="lnx_e")
    assert (str(found.address), found.api_key) == ("http://a:1", "lnx_e")
    given_ones = settings_of(base_url="http://b:2", api_key="lnx_g", LUNANEXA_URL="http://a:1", LUNANEXA_TOKEN="lnx_e")
    assert (str(given_ones.address), given_ones.api_key) == ("http://b:2", "lnx_g")
    assert "lnx_g" not in repr(given_ones)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"api_key": "a\r\nb"}, "api_key"),
        ({"api_key": "schlüssel"}, "api_key"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"retries": Retries(max_retries=-1)}, "max_retries"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        ClientSettings(address=parse_address("http://x"), **changes)  # type: ignore[arg-type]  # wrong on purpose


def failure(*, retryable: bool = True, after_ms: int | None = None) -> ConnectionFailed:
    return ConnectionFailed("m", ErrorFacts(code="x", retryable=retryable, retry_after_ms=after_ms))


@given(st.integers(0, 100), st.none() | st.integers(0, 10_000_000), st.integers(0, 10_000_000), st.integers(0, 10**6))
def test_waits(done: int, after_ms: int | None, remaining_ms: int, draw: int) -> None:
    retries = Retries(max_retries=50)
    wait = wait_ms(
        retries, done=done, error=failure(after_ms=after_ms), remaining_ms=remaining_ms, below=lambda n: draw % n
    )
    if wait is None:
        assert done >= 50 or (after_ms or 0) * 1.25 + 1 >= remaining_ms or remaining_ms <= retries.cap_ms * 1.25
        return
    assert done < 50
    assert wait < remaining_ms
    if after_ms is None:
        assert 250 <= wait <= retries.cap_ms * 1.25
    else:
        assert after_ms <= wait <= after_ms * 1.25


def test_what_is_not_retryable_is_not_tried_again() -> None:
    assert wait_ms(Retries(), done=0, error=failure(retryable=False), remaining_ms=10**6, below=lambda _: 0) is None
    assert wait_ms(Retries(max_retries=0), done=0, error=failure(), remaining_ms=10**6, below=lambda _: 0) is None


@pytest.mark.parametrize(
    ("document", "usage"),
    [
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 4}}, Usage(input_tokens=3, output_tokens=4)),
        (
            {"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}},
            Usage(input_tokens=3, cached_tokens=2),
        ),
        (
            {"usage": {"input": 3, "output": 4, "cached": 1, "estimated": True}},
            Usage(input_tokens=3, output_tokens=4, cached_tokens=1, estimated=True),
        ),
        ({"usage": {"prompt_tokens": "3", "completion_tokens": -1}}, Usage()),
        ({"usage": None}, None),
        ([], None),
    ],
)
def test_usage(document: object, usage: Usage | None) -> None:
    assert usage_of(document) == usage


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"choices": [{"delta": {"content": "a"}}]}, "a"),
        ({"choices": [{"message": {"content": "b"}}]}, "b"),
        ({"choices": [{"text": "c"}]}, "c"),
        ({"choices": [{"delta": {"content": None}}]}, ""),
        ({"choices": []}, ""),
        ({"choices": [3]}, ""),
        (None, ""),
    ],
)
def test_text(document: object, text: str) -> None:
    assert text_of(document) == text


def test_rate_limits_of_a_head() -> None:
    names = (b"x-ratelimit-limit-requests", b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-requests")
    head = head_of(200, tuple(zip(names, (b"60", b"59", b"1m1s"), strict=True)))
    assert head.rate_limits.requests == Allowance(limit=60, remaining=59, reset_ms=61_000)
    assert head.rate_limits.tokens is None
    assert head_of(200, ((b"x-lunanexa-queue-ms", b"12"),)).queue_ms == 12
    assert head_of(200, ((b"x-lunanexa-queue-ms", b"soon"),)).queue_ms is None


@pytest.mark.parametrize("document", [None, [], {"data": 1}, {"data": [1]}])
def test_lists_that_cannot_be_read(document: object) -> None:
    with pytest.raises(ProtocolError):
        page_of(document, after=None)


def test_a_list_that_goes_round_in_circles() -> None:
    with pytest.raises(ProtocolError, match="circles"):
        page_of({"data": [], "next_cursor": "c"}, after="c")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS) | st.text(max_size=3), inner),
    max_leaves=12,
)


@given(json_values, st.none() | st.integers(100, 599), st.dictionaries(st.sampled_from(HEADERS), st.text(max_size=9)))
def test_no_document_breaks_a_reader(document: object, status: int | None, headers: dict[str, str]) -> None:
    usage_of(document)
    assert isinstance(text_of(document), str)
    error = error_of_answer(document, status=status, headers=headers)
    assert isinstance(error, LunaNexaError)
    assert (error.retry_after_s or 0) >= 0
    head = AnswerHead(status=200, headers=headers)
    assert (head.queue_ms or 0) >= 0
    assert head.rate_limits is not None
    for read in (models_of, partial(page_of, after=None)):
        with suppress(ProtocolError):
            read(document)


def test_models() -> None:
    cards = [{"id": "a", "owned_by": "o", "meta": {"x": 1}}, {"id": 3}, {"id": "b"}]
    assert [(model.id, model.owned_by, dict(model.meta)) for model in models_of({"data": cards})] == [
        ("a", "o", {"x": 1}),
        ("b", None, {}),
    ]
    with pytest.raises(ProtocolError):
        models_of({"data": None})
