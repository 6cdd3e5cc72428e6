"""That a data directory is an air-gapped node's. A node follows either a controller or an authority, never both."""

from typing import Final

import attrs

from lunanexa_apps.codec import CodecError, decode, encode
from lunanexa_apps.node.findings import Finding, problem
from lunanexa_apps.node.identity import read_identity
from lunanexa_core.ids import NodeId
from lunanexa_ports.errors import PortFault
from lunanexa_ports.node_store import NodeStore

AIR_GAP: Final = "air gap"
"""The step of a look at the node that tells of it."""
_FACT: Final = "air_gapped"
ENROLLED: Final = (
    "this data directory is that of node {node}, which is enrolled and follows its controllers: choose another one"
    " for a node without a network"
)


@attrs.frozen
class AirGapped:
    """Which node it is; its cluster comes with the first bundle."""

    node: NodeId

    def describe(self) -> Finding:
        """As a step of a look at the node, in the place of enrolment, controllers and data listener."""
        return Finding(step=AIR_GAP, found=f"node {self.node}: it follows bundles, and no controller")


async def read_air_gapped(store: NodeStore) -> AirGapped | None:
    """``None``: it is no air-gapped node's. Raises ``PortFault`` for what can't be read."""
    kept = await store.get(_FACT)
    if kept is None:
        return None
    try:
        return decode(AirGapped, kept)
    except CodecError as error:
        raise PortFault(f"which node this is can't be read ({error}): begin anew with an empty --data-dir") from error


async def become_air_gapped(store: NodeStore, node: NodeId) -> None:
    """From now on the directory is that node's. Raises ``PortFault`` where it is another's, or enrolled."""
    await refuse_enrolled(store)
    known = await read_air_gapped(store)
    if known is not None and known.node != node:
        raise PortFault(f"this data directory is that of the air-gapped node {known.node}: choose another one")
    await store.put(_FACT, encode(AirGapped(node)))


async def describe_kind(store: NodeStore | None, place: str, *, air_gapped: bool) -> Finding | None:
    """Whether the directory is of the kind that the options say, as a step of a look at it; ``None``: it is no
    air-gapped node's, and need not be. Raises ``PortFault`` for what can't be read."""
    known = None if store is None else await read_air_gapped(store)
    if known is not None and air_gapped:
        return known.describe()
    try:
        if store is not None:
            await (refuse_enrolled(store) if air_gapped else refuse_air_gapped(store))
    except PortFault as refused:
        return problem(AIR_GAP, str(refused), "a node follows either a controller or an authority")
    if not air_gapped:
        return None
    return problem(AIR_GAP, f"{place} is no air-gapped node's", "lunanexa-node init --air-gapped makes it one")


async def refuse_enrolled(store: NodeStore) -> None:
    """Raises ``PortFault`` for a node that is enrolled."""
    identity = await read_identity(store)
    if identity is not None:
        raise PortFault(ENROLLED.format(node=identity.node))


async def refuse_air_gapped(store: NodeStore) -> None:
    """Raises ``PortFault`` for an air-gapped node: no controller may direct it."""
    known = await read_air_gapped(store)
    if known is not None:
        raise PortFault(
            f"this data directory is that of the air-gapped node {known.node}, which follows no controller:"
            " run it with --air-gapped, or choose another one"
        )
