"""An operator's word against a node, and where a node is reached."""

from lunanexa_core.commands import AddressNode, RevokeNode
from lunanexa_core.events import NodeAddressed, NodeRevoked
from lunanexa_core.identity.enrol import BAD_ADDRESS
from lunanexa_core.ids import NodeId
from lunanexa_core.nodes.directive import reason_refusal
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.routing.reach import parse_data_address
from lunanexa_core.state import State


def revoke(state: State, command: RevokeNode) -> NodeRevoked | Refusal | None:
    """The revocation; ``None`` of a node that is revoked."""
    node = state.nodes.get(command.node)
    if node is None:
        return no_node(command.node)
    refusal = reason_refusal(command.reason)
    if refusal is not None:
        return refusal
    return None if node.revoked else NodeRevoked(node=command.node, reason=command.reason)


def address(state: State, command: AddressNode) -> NodeAddressed | Refusal | None:
    """The change of address; ``None`` when there is none."""
    node = state.nodes.get(command.node)
    if node is None:
        return no_node(command.node)
    if command.data_address is not None and parse_data_address(command.data_address) is None:
        return BAD_ADDRESS
    if node.data_address == command.data_address:
        return None
    if command.data_address is None and not node.loopback:
        # Its reports would lead gateways to whatever listens on the controller's own loopback.
        return Refusal(
            outcome=Outcome.INVALID_REQUEST,
            message="This node enrolled with a data listener. For one of the controller's own machine that does without"
            f" it: lunanexa node token {command.node} --again --loopback, and enrol the node anew.",
            param="data_address",
        )
    return NodeAddressed(node=command.node, data_address=command.data_address)


def no_node(name: NodeId) -> Refusal:
    """There is none of that name."""
    return Refusal(outcome=Outcome.NOT_FOUND, message=f"There is no node {name[:256]!r}.", param="node")
