"""The controller's secrets as files: which there are, and the keys that the kernel makes of them.

Each is a file of its own in ``controller/secrets``. The kernel knows only digests; the engine secret is
what engine keys are derived from and is never shown.
"""

from collections.abc import Callable
from typing import Final

import attrs

from lunanexa_core.ids import KeyId, NodeId, TenantId
from lunanexa_core.keys import API_KEY_PREFIX, ApiKey, Role, secret_digest, weak_secret
from lunanexa_ports.errors import PortFault
from lunanexa_ports.ids import IdSource

LOCAL_NODE: Final = NodeId("local")
LOCAL_TENANT: Final = TenantId("local")
_NAMES: Final = ("api_key", "operator_token", "node_key", "engine_secret")


@attrs.frozen(kw_only=True, repr=False)
class ControllerSecrets:
    """All four, as read."""

    api_key: str
    operator_token: str
    node_key: str
    engine_secret: str

    def keys(self) -> tuple[ApiKey, ...]:
        """The keys that must be in force while this installation runs."""
        return (
            ApiKey(
                key=KeyId("key_local"),
                tenant=LOCAL_TENANT,
                digest=secret_digest(self.api_key),
                roles=frozenset({Role.INFERENCE}),
            ),
            ApiKey(
                key=KeyId("key_operator"),
                tenant=LOCAL_TENANT,
                digest=secret_digest(self.operator_token),
                roles=frozenset({Role.OPERATOR}),
            ),
        )

    def nodes(self) -> tuple[tuple[NodeId, str], ...]:
        """The node that the installation expects, and the digest of its key."""
        return ((LOCAL_NODE, secret_digest(self.node_key)),)


def load_secrets(
    ids: IdSource, read: Callable[[str], str | None], create: Callable[[str, str], None]
) -> ControllerSecrets:
    """Reads each secret by its file name and creates what is missing. ``create`` writes a file that only its
    owner can read. Raises :class:`PortFault` for a weak or a repeated one, with what mends it."""
    found: dict[str, str] = {}
    for name in _NAMES:
        secret = read(name)
        if secret is None:
            secret = (API_KEY_PREFIX if name == "api_key" else "") + ids.secret()
            create(name, secret)
        weakness = weak_secret(secret)
        if weakness is not None:
            raise PortFault(f"the secret {name} is {weakness.value}; remove its file to have a new one made")
        if secret in found.values():
            raise PortFault(f"the secret {name} equals another one; remove its file to have a new one made")
        found[name] = secret
    return ControllerSecrets(**found)
