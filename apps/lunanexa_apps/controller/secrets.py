"""The controller's secrets as the kernel knows them: by their digests only."""

from typing import Final

from lunanexa_apps.installation import LOCAL_NODE, ControllerSecrets
from lunanexa_core.commands import Begin
from lunanexa_core.ids import KeyId, NodeId, TenantId
from lunanexa_core.keys import ApiKey, Role, secret_digest
from lunanexa_core.state import State
from lunanexa_ports.errors import PortFault

LOCAL_TENANT: Final = TenantId("local")


def keys_of(secrets: ControllerSecrets) -> tuple[ApiKey, ...]:
    """The keys that must be in force while this installation runs."""
    return (
        ApiKey(
            key=KeyId("key_local"),
            tenant=LOCAL_TENANT,
            digest=secret_digest(secrets.api_key),
            roles=frozenset({Role.INFERENCE}),
        ),
        ApiKey(
            key=KeyId("key_operator"),
            tenant=LOCAL_TENANT,
            digest=secret_digest(secrets.operator_token),
            roles=frozenset({Role.OPERATOR}),
        ),
    )


def check_same_installation(state: State, begin: Begin) -> None:
    """Raises ``PortFault`` when another installation led the store last, with other secrets than ``begin`` brings: as a
    leader this one would void them, and could reach neither nodes nor engines. A store that was restored may be taken
    over by whoever is there."""
    if state.recovery is not None or state.holder in (None, begin.holder):
        return
    for key in begin.keys:
        known = state.keys.get(key.key)
        if known is not None and known.digest != key.digest:
            raise PortFault(
                "this controller's secrets are not those of the controller that led the store last; copy the folder"
                " controller/secrets from its data directory into this one's"
            )


def nodes_of(secrets: ControllerSecrets) -> tuple[tuple[NodeId, str], ...]:
    """The node that the installation expects, and the digest of its key."""
    return ((LOCAL_NODE, secret_digest(secrets.node_key)),)
