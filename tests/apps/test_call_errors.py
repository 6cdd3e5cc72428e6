"""How programs tell errors of the client library: who answered, in what words, with which status."""

import pytest

from lunanexa_apps.call_errors import exit_code_of, unanswered, words_of
from lunanexa_client import ConnectionFailed, DeadlineExceeded, LunaNexaError, ProtocolError
from lunanexa_client.refusals import error_of_answer
from lunanexa_core.outcomes import TABLE, Outcome


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_refusal_ends_as_the_outcome_table_says(outcome: Outcome) -> None:
    row, told = TABLE[outcome], {"code": outcome.value, "message": "m", "param": "engine.slots"}
    error = error_of_answer({"error": told}, status=row.http_status)
    assert exit_code_of(error) == row.exit_code
    assert words_of(error) == "engine.slots: m"
    assert not unanswered(error)


@pytest.mark.parametrize(
    ("document", "status", "words", "exit_code"),
    [
        (None, 502, "HTTP status 502", 69),
        ({"error": {"code": "brand_new", "message": 7}}, 502, "HTTP status 502", 69),
        ({"error": {"code": "context_length_exceeded", "message": "too long"}}, 400, "too long", 65),
        ({"error": {"code": "x", "message": "'n' is too high", "param": "n"}}, 422, "'n' is too high", 65),
    ],
)
def test_refusals_of_strangers(document: object, status: int, words: str, exit_code: int) -> None:
    error = error_of_answer(document, status=status)
    assert (words_of(error), exit_code_of(error)) == (words, exit_code)
    assert not unanswered(error)


@pytest.mark.parametrize(
    "error",
    [ConnectionFailed("refused"), ProtocolError("no JSON"), DeadlineExceeded("late"), error_of_answer([], status=302)],
)
def test_what_no_controller_said(error: LunaNexaError) -> None:
    assert unanswered(error)
