"""Each row of the outcome table has its class, and what is not in it is classed by its status."""

import pytest

import lunanexa_client
from lunanexa_client import errors
from lunanexa_client.errors import CLASSES, LunaNexaError
from lunanexa_client.refusals import class_of, error_of
from lunanexa_core.contract.frames import RESUME_GONE
from lunanexa_core.outcomes import TABLE, Outcome, Refusal, error_document


def test_every_outcome_has_a_class() -> None:
    assert set(CLASSES) == set(Outcome)


def test_the_class_of_a_row_is_also_that_of_its_status() -> None:
    """So that a code of a later version lands where its neighbours are."""
    for outcome, row in TABLE.items():
        assert class_of("of_a_later_version", row.http_status) is CLASSES[outcome], outcome


@pytest.mark.parametrize("outcome", list(Outcome))
def test_facts_of_a_refusal(outcome: Outcome) -> None:
    refusal = Refusal(outcome=outcome, message="because", param="model")
    error = error_of(
        error_document(refusal, "req_1")["error"],
        status=refusal.row.http_status,
        headers={"retry-after": "7", "x-lunanexa-workload-id": "wl_1"},
    )
    assert type(error) is CLASSES[outcome]
    assert str(error) == error.message == "because"
    assert (error.outcome, error.code, error.param) == (outcome, outcome.value, "model")
    assert (error.status, error.request_id, error.workload_id) == (refusal.row.http_status, "req_1", "wl_1")
    assert (error.retryable, error.retry_after_s) == (refusal.row.retry, 7.0)


def test_the_header_says_whether_to_retry() -> None:
    document = {"code": "queue_full", "message": "m", "retryable": True}
    assert not error_of(document, status=429, headers={"x-should-retry": "false"}).retryable
    assert error_of({"code": "x"}, status=418, headers={"x-should-retry": "true"}).retryable


@pytest.mark.parametrize(
    ("headers", "document", "after_s"),
    [
        ({"retry-after-ms": "250", "retry-after": "1"}, {}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, {}, None),
        ({"retry-after": "-1"}, {}, None),
        ({"retry-after": "9" * 400}, {}, None),
        ({}, {"retry_after_ms": 1500}, 1.5),
        ({}, {"retry_after_ms": True}, None),
        ({}, {}, None),
    ],
)
def test_when_to_come_back(headers: dict[str, str], document: dict[str, object], after_s: float | None) -> None:
    assert error_of(document, status=503, headers=headers).retry_after_s == after_s


@pytest.mark.parametrize(
    ("document", "status", "kind"),
    [
        (None, 500, errors.InternalError),
        ("no", 418, errors.InvalidRequest),
        (None, 302, errors.ProtocolError),
        ({"message": 5, "code": None}, 502, errors.EngineFailed),
        ({"code": 400, "message": "an engine's own", "type": "invalid_request_error"}, None, errors.InvalidRequest),
        ({"code": 429, "message": "an engine's own"}, None, errors.RateLimited),
        ({"message": "m", "type": "authentication_error"}, None, errors.AuthenticationError),
        ({"message": "m", "type": "server_error"}, None, errors.InternalError),
        ({"code": RESUME_GONE, "message": "m", "receipt": "/v1/workloads/wl_1"}, None, errors.ResumeGone),
    ],
)
def test_what_is_no_error_of_ours(document: object, status: int | None, kind: type[LunaNexaError]) -> None:
    error = error_of(document, status=status)
    assert type(error) is kind
    assert error.outcome is None
    assert error.message


def test_each_class_is_public_and_has_the_one_base() -> None:
    kinds = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    }
    exceptions = {name for name, value in kinds.items() if issubclass(value, Exception)}
    assert exceptions <= set(lunanexa_client.__all__)
    assert all(issubclass(kinds[name], LunaNexaError) for name in exceptions)
