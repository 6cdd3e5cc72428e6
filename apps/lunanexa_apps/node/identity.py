"""What a node remembers of its enrolment, beside the keys that its adapters keep."""

from typing import Final

import attrs

from lunanexa_apps.codec import CodecError, decode
from lunanexa_core.identity.names import node_identity
from lunanexa_core.identity.trust import TrustSet
from lunanexa_core.ids import ClusterId, NodeId
from lunanexa_ports.errors import PortFault
from lunanexa_ports.node_store import NodeStore

IDENTITY: Final = "identity"
"""Its fact in the node store."""


@attrs.frozen(kw_only=True)
class NodeIdentity:
    """Whose the node is, and whom it trusts."""

    node: NodeId
    cluster: ClusterId
    epoch: int
    """The first fence: no document of an earlier epoch is followed."""
    trust: TrustSet
    issuer: str
    """The fingerprint of the authority of the certificate that it shows."""
    token: str
    """The name of the token that let it in."""
    controllers: tuple[str, ...]
    """URLs of their node listeners, as it was told at enrolment."""
    data_address: str | None = None
    """Where gateways reach its data listener."""

    @property
    def uri(self) -> str:
        """The name in its certificates."""
        return node_identity(self.cluster, self.node).uri


async def read_identity(store: NodeStore) -> NodeIdentity | None:
    """``None`` before the node was enrolled. Raises ``PortFault`` for what can't be read."""
    kept = await store.get(IDENTITY)
    if kept is None:
        return None
    try:
        return decode(NodeIdentity, kept)
    except CodecError as error:
        raise PortFault(f"the node's enrolment can't be read ({error}); enrol it anew with a token") from error
