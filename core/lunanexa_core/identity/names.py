"""Names of parties, as the one URI in the subject alternative name of their certificates (after SPIFFE-ID 2):
``lunanexa://<cluster>/<role>/<name>``."""

import enum
from typing import Final

import attrs

from lunanexa_core.ids import ClusterId, HolderId, NodeId, is_identifier

SCHEME: Final = "lunanexa://"


class Party(enum.Enum):
    """What a certificate's owner is. Each is let in where its own kind belongs, and nowhere else."""

    NODE = "node"
    CONTROLLER = "controller"
    """What nodes dial."""
    GATEWAY = "gateway"
    """What may speak to nodes' data listeners."""


@attrs.frozen
class Identity:
    """One party of one cluster."""

    cluster: ClusterId
    party: Party
    name: str

    @property
    def uri(self) -> str:
        return f"{any_of(self.cluster, self.party)}{self.name}"


def any_of(cluster: ClusterId, party: Party) -> str:
    """What the URIs of all parties of a kind begin with, and no other's."""
    return f"{SCHEME}{cluster}/{party.value}/"


def node_identity(cluster: ClusterId, node: NodeId) -> Identity:
    return Identity(cluster, Party.NODE, node)


def controller_identity(cluster: ClusterId, holder: HolderId) -> Identity:
    return Identity(cluster, Party.CONTROLLER, _plain(holder))


def gateway_identity(cluster: ClusterId, holder: HolderId) -> Identity:
    return Identity(cluster, Party.GATEWAY, _plain(holder))


def _plain(holder: HolderId) -> str:
    """A holder's name has its host's after an ``@``, which no identifier has."""
    return holder.replace("@", ":")


def parse_identity(uri: str) -> Identity | None:
    """The party of a URI; ``None`` for whatever is none of ours, in full."""
    if not uri.startswith(SCHEME):
        return None
    parts = uri.removeprefix(SCHEME).split("/")
    kinds = {party.value: party for party in Party}
    if len(parts) != 3 or parts[1] not in kinds or not is_identifier(parts[0]) or not is_identifier(parts[2]):
        return None
    return Identity(ClusterId(parts[0]), kinds[parts[1]], parts[2])
