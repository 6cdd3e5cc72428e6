"""Documents that operators and nodes send, and what the sender of one that is none of ours is told."""

from typing import TypeVar

from lunanexa_apps.codec import CodecError, structure
from lunanexa_core.canonical import JsonValue
from lunanexa_core.outcomes import Outcome, Refusal

T = TypeVar("T")


def read_document(kind: type[T], document: JsonValue) -> T | Refusal:
    """What an operator asks for; a member that is not known is refused."""
    if not isinstance(document, dict):
        return Refusal(outcome=Outcome.INVALID_REQUEST, message="The body must be a JSON object.")
    try:
        return structure(kind, document, closed=True)
    except CodecError as error:
        return unreadable(error)


def unreadable(error: CodecError) -> Refusal:
    """Names the field; the body itself (``$``) has no name."""
    field = error.path.removeprefix("$.")
    return Refusal(
        outcome=Outcome.INVALID_REQUEST,
        message=f"{'The body' if field == '$' else field}: {error.problem}.",
        param=None if field == "$" else field,
    )
