"""What an operator wants of a whole node."""

from typing import Final

from lunanexa_core.commands import SetDirective
from lunanexa_core.events import DirectiveChanged
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.placement.standing import EMPTYING
from lunanexa_core.state import State

REASON_MAX: Final = 256
WITHIN_MS_MAX: Final = 30 * 86_400_000
"""The longest that an operator may let a node be emptied."""
RETIRED: Final = Refusal(
    outcome=Outcome.NODE_RETIRED, message="This node is retired; an operator must let it enrol anew."
)


def reason_refusal(reason: str | None) -> Refusal | None:
    """Why an operator's reason is not kept, or ``None``."""
    if reason is None or (len(reason) <= REASON_MAX and reason.isprintable()):
        return None
    return Refusal(
        outcome=Outcome.INVALID_REQUEST,
        message=f"A reason has {REASON_MAX} printable characters at most.",
        param="reason",
    )


def set_directive(state: State, command: SetDirective) -> DirectiveChanged | Refusal | None:
    """The change; ``None`` when there is none."""
    node = state.nodes.get(command.node)
    if node is None:
        return Refusal(outcome=Outcome.NOT_FOUND, message=f"There is no node {command.node[:256]!r}.", param="node")
    if node.retired:
        return RETIRED
    if command.if_match not in (None, node.generation):
        return Refusal(
            outcome=Outcome.STALE_GENERATION,
            message=f"The node is at generation {node.generation}, not {command.if_match}.",
            param="If-Match",
        )
    refusal = reason_refusal(command.reason)
    if refusal is not None:
        return refusal
    refusal = _within_refusal(command)
    if refusal is not None:
        return refusal
    now = (node.directive, node.directive_reason, node.directive_within_ms)
    within_ms = node.directive_within_ms if command.within_ms is None else command.within_ms
    if now == (command.directive, command.reason or node.directive_reason, within_ms):
        return None
    return DirectiveChanged(
        node=command.node, directive=command.directive, reason=command.reason, within_ms=command.within_ms
    )


def _within_refusal(command: SetDirective) -> Refusal | None:
    if command.within_ms is None:
        return None
    if command.directive not in EMPTYING:
        message = f"Only a drain or a retirement has a time that it may take; {command.directive.value} has none."
    elif not 0 <= command.within_ms <= WITHIN_MS_MAX:
        message = f"A node may take 0 to {WITHIN_MS_MAX} ms to be emptied."
    else:
        return None
    return Refusal(outcome=Outcome.INVALID_REQUEST, message=message, param="within_ms")
