"""A body that is no document of ours, as its sender is told."""

from lunanexa_apps.codec import CodecError
from lunanexa_core.outcomes import Outcome, Refusal


def unreadable(error: CodecError) -> Refusal:
    """Names the field; the body itself (``$``) has no name."""
    field = error.path.removeprefix("$.")
    return Refusal(
        outcome=Outcome.INVALID_REQUEST,
        message=f"{'The body' if field == '$' else field}: {error.problem}.",
        param=None if field == "$" else field,
    )
