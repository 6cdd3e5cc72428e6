"""The controller's secrets as the kernel knows them: by their digests only."""

from typing import Final

import attrs

from lunanexa_apps.installation import ControllerSecrets
from lunanexa_core.commands import Begin
from lunanexa_core.identity.rotate import holds_any
from lunanexa_core.identity.trust import Authority, SigningKey
from lunanexa_core.ids import ClusterId, KeyId, TenantId
from lunanexa_core.keys import ApiKey, Role, secret_digest
from lunanexa_core.state import State
from lunanexa_ports.errors import PortFault
from lunanexa_ports.fleet_keys import FleetKeys

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


def may_lead(state: State, begin: Begin, *, patient: bool) -> bool:
    """Whether this installation has what a leader of the store needs. ``patient``: the cluster's keys, which a rotation
    exchanged where it was led, may be brought here yet. Raises ``PortFault`` when another one led the store last, with
    other secrets than ``begin`` brings: as a leader this one would void them, and reach neither nodes nor engines. A
    store that was restored may be taken over by whoever is there."""
    if state.recovery is not None or state.holder in (None, begin.holder):
        return True
    differs = any(
        known is not None and known.digest != key.digest
        for key, known in ((key, state.keys.get(key.key)) for key in begin.keys)
    )
    lacks = state.trust is not None and not holds_any(state, begin)
    if differs or (lacks and not patient):
        raise PortFault(
            "this controller's secrets are not those of the controller that led the store last; copy the folder"
            " controller/secrets from its data directory into this one's"
        )
    return not lacks


def first_command(
    secrets: ControllerSecrets, keys: FleetKeys, cluster: ClusterId, version: str, node_url: str | None
) -> Begin:
    """What this installation begins to lead with; ``node_url``: where nodes are told that it answers them. Raises as
    the port does."""
    authority, signing_key = _newest(keys)
    begin = Begin(
        cluster=cluster,
        version=version,
        node_url=node_url,
        keys=keys_of(secrets),
        authority=authority,
        signing_key=signing_key,
    )
    return begin_with(begin, keys)


def begin_with(begin: Begin, keys: FleetKeys) -> Begin:
    """``begin`` with the cluster's keys as they are here now: a rotation exchanges them. Raises as the port does."""
    authority, signing_key = _newest(keys)
    return attrs.evolve(begin, authority=authority, signing_key=signing_key, held=frozenset(keys.authorities()))


def _newest(keys: FleetKeys) -> tuple[Authority, SigningKey]:
    authority, signer = list(keys.authorities().values())[-1], list(keys.signers().values())[-1]
    return authority, SigningKey(key_id=signer.key_id, public_key=signer.public_key)
