"""What an operator wants of a whole node."""

from typing import Final

from lunanexa_core.commands import SetDirective
from lunanexa_core.events import DirectiveChanged
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.state import State

REASON_MAX: Final = 256
RETIRED: Final = Refusal(
    outcome=Outcome.NODE_RETIRED, message="This node is retired; it must enrol anew under another name."
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
    if command.reason is not None and not (len(command.reason) <= REASON_MAX and command.reason.isprintable()):
        return Refusal(
            outcome=Outcome.INVALID_REQUEST,
            message=f"A reason has {REASON_MAX} printable characters at most.",
            param="reason",
        )
    if (node.directive, node.directive_reason) == (command.directive, command.reason or node.directive_reason):
        return None
    return DirectiveChanged(node=command.node, directive=command.directive, reason=command.reason)
