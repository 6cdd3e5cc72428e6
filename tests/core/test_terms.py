"""Terms in headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.terms import TERM_HEADERS, DataPolicy, RetainFor, Terms, terms_of_headers
from lunanexa_core.workload import DataClass, Priority

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_nothing_said_allows_nothing() -> None:
    terms = terms_of_headers({})
    assert terms == Terms()
    assert terms.data == DataPolicy(classification=DataClass.INTERNAL)


def test_what_is_said() -> None:
    headers = {
        "x-lunanexa-deadline-ms": "1500",
        "x-lunanexa-priority": "interactive",
        "x-lunanexa-data-class": "Restricted",
        "x-lunanexa-retain-ms": "60000",
        "idempotency-key": "order-17",
        "traceparent": TRACE,
    }
    assert headers.keys() == set(TERM_HEADERS)
    assert terms_of_headers(headers) == Terms(
        deadline_ms=1_500,
        priority=Priority.INTERACTIVE,
        idempotency_key="order-17",
        data=DataPolicy(classification=DataClass.RESTRICTED, retention=RetainFor(60_000)),
        trace=TRACE,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("x-lunanexa-deadline-ms", value) for value in ("soon", "0", "-1", "1.5", "²", "", "1" * 13)),
        ("x-lunanexa-retain-ms", "for ever"),
        ("x-lunanexa-priority", "urgent"),
        ("x-lunanexa-data-class", "Secret"),
        *(("idempotency-key", value) for value in ("", "a b", "k" * 257)),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_name(name: str, value: str) -> None:
    refusal = terms_of_headers({name: value})
    assert isinstance(refusal, Refusal)
    assert (refusal.outcome, refusal.param) == (Outcome.INVALID_REQUEST, name)
    assert name in refusal.message


def test_a_trace_that_cannot_be_read_is_dropped() -> None:
    assert terms_of_headers({"traceparent": "00-1"}) == Terms()


@given(st.dictionaries(st.sampled_from(TERM_HEADERS), st.text(max_size=40)))
def test_whatever_stands_there_is_read_or_refused(headers: dict[str, str]) -> None:
    terms = terms_of_headers(headers)
    if isinstance(terms, Refusal):
        assert terms.param in headers
