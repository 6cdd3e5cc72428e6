"""The outcome table against what the northbound interface promises."""

import pytest

from lunanexa_core.outcomes import TABLE, Outcome, Refusal, WebSocketFrame, error_document

PROMISED = {
    400: {"invalid_request", "unsupported_endpoint"},
    401: {"invalid_api_key"},
    403: {"permission_denied", "node_retired"},
    404: {"model_not_found", "not_found"},
    405: {"method_not_allowed"},
    408: {"request_timeout"},
    409: {"workload_active", "idempotency_mismatch", "idempotency_output_gone", "stale_generation", "document_wanted"},
    413: {"payload_too_large"},
    429: {"quota_exceeded", "rate_limited", "queue_full", "deadline_unreachable"},
    431: {"head_too_large"},
    499: {"cancelled_by_caller"},
    500: {"internal"},
    502: {"engine_failed"},
    503: {
        "no_capacity",
        "no_placement",
        "starting",
        "draining",
        "not_leader",
        "store_unavailable",
        "receipt_unavailable",
        "retention_unavailable",
    },
    504: {"deadline_exceeded"},
}


def test_the_table_is_total() -> None:
    assert set(TABLE) == set(Outcome)


def test_statuses_are_the_promised_ones() -> None:
    found: dict[int, set[str]] = {}
    for outcome, row in TABLE.items():
        found.setdefault(row.http_status, set()).add(outcome.value)
    assert found == PROMISED


@pytest.mark.parametrize("outcome", Outcome)
def test_overload_says_when_to_come_back(outcome: Outcome) -> None:
    row = TABLE[outcome]
    assert (row.retry_after_ms is not None) == (row.http_status in (429, 503))
    assert row.retry_after_ms is None or row.retry_after_ms > 0


def test_what_may_be_tried_again() -> None:
    """A refused or broken attempt left nothing behind, but for a workload whose receipt is still to come."""
    again = {outcome for outcome, row in TABLE.items() if row.http_status in (429, 502, 503)}
    assert {outcome for outcome, row in TABLE.items() if row.retry} == again - {Outcome.RECEIPT_UNAVAILABLE}


def test_only_a_cancelled_workload_ends_in_the_cancelled_frame() -> None:
    cancelled = {outcome for outcome, row in TABLE.items() if row.frame is WebSocketFrame.CANCELLED}
    assert cancelled == {Outcome.CANCELLED_BY_CALLER}


@pytest.mark.parametrize("outcome", Outcome)
def test_exit_codes_tell_failure_and_temporary_failure_apart(outcome: Outcome) -> None:
    row = TABLE[outcome]
    assert row.exit_code in {65, 66, 69, 70, 75, 77, 130}
    if row.http_status in (429, 503):
        assert row.exit_code == 75


def test_a_refusal_knows_better_than_the_table() -> None:
    outcome = Outcome.QUEUE_FULL
    assert Refusal(outcome=outcome, message="full").wait_ms == TABLE[outcome].retry_after_ms
    assert Refusal(outcome=outcome, message="full", retry_after_ms=0).wait_ms == 0
    assert Refusal(outcome=Outcome.INTERNAL, message="a bug").wait_ms is None


def test_the_error_document() -> None:
    refusal = Refusal(outcome=Outcome.MODEL_NOT_FOUND, message="no model 'x'", param="model")
    assert error_document(refusal, "req_1") == {
        "error": {
            "message": "no model 'x'",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
            "retryable": False,
            "request_id": "req_1",
        }
    }
