"""Errors of the client library as a program tells them: whether anything answered, in what words, with which status."""

from typing import Final

from lunanexa_client import ConnectionFailed, DeadlineExceeded, LunaNexaError, ProtocolError
from lunanexa_core.outcomes import TABLE, Outcome

UNNAMED_EXIT_CODE: Final = 69
"""sysexits' EX_UNAVAILABLE, for a refusal whose code this version does not know."""
_REQUEST_AT_FAULT: Final = frozenset({400, 413, 422})
"""An engine's own refusals pass through with codes of their own."""


def unanswered(error: LunaNexaError) -> bool:
    """Whether no controller answered: nobody did, not in time, or somebody else."""
    return isinstance(error, ConnectionFailed | ProtocolError) or (
        isinstance(error, DeadlineExceeded) and error.status is None
    )


def words_of(error: LunaNexaError) -> str:
    """The message, with the field at fault where the message itself does not name it."""
    named = error.param is None or error.param in error.message
    return error.message if named else f"{error.param}: {error.message}"


def exit_code_of(error: LunaNexaError) -> int:
    """That of the outcome table, where the code is in it."""
    if error.outcome is not None:
        return TABLE[error.outcome].exit_code
    return TABLE[Outcome.INVALID_REQUEST].exit_code if error.status in _REQUEST_AT_FAULT else UNNAMED_EXIT_CODE
