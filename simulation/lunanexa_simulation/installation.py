"""What an installation holds beside its store, and what of it is secret."""

from typing import Final

import attrs

from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_core.commands import Begin
from lunanexa_core.deployment import Assignment
from lunanexa_core.identity.trust import SigningKey
from lunanexa_core.ids import ClusterId, KeyId, TenantId
from lunanexa_core.keys import API_KEY_PREFIX, ApiKey, Role, derive_engine_key, secret_digest
from lunanexa_core.policy import Policy
from lunanexa_ports.fleet_keys import FleetKeys
from lunanexa_ports.ids import IdSource
from lunanexa_ports.signing import Verifier
from lunanexa_simulation.fleet_keys import SimulatedFleetKeys
from lunanexa_simulation.signing import SimulatedKeyring

PROMPT_SECRET: Final = "violet-harbour-7302"
"""Stands in every prompt, and may stand nowhere else."""


@attrs.frozen(kw_only=True)
class Installation:
    """What every process of the controller is started with."""

    begin: Begin
    engine_secret: str
    keyring: SimulatedKeyring
    fleet_keys: SimulatedFleetKeys
    """All controllers have them: copied, as an operator does."""
    verifier: Verifier
    policy: Policy
    gateway: GatewaySettings


@attrs.frozen(kw_only=True)
class Secrets:
    """All secrets of a world, for those who need them and for the checker that looks for them."""

    api_key: str
    operator_token: str
    engine: str

    @classmethod
    def draw(cls, ids: IdSource) -> "Secrets":
        """Fresh ones."""
        return cls(
            api_key=API_KEY_PREFIX + ids.secret(),
            operator_token=ids.secret(),
            engine=ids.secret(),
        )

    def begin(self, cluster: ClusterId, keys: FleetKeys) -> Begin:
        """The first command of each leader of this installation."""
        (authority,), (signer,) = keys.authorities().values(), keys.signers().values()
        return Begin(
            cluster=cluster,
            version="simulated",
            keys=(
                _key("key_client", self.api_key, Role.INFERENCE),
                _key("key_operator", self.operator_token, Role.OPERATOR),
            ),
            authority=authority,
            signing_key=SigningKey(key_id=signer.key_id, public_key=signer.public_key),
        )

    def planted(self) -> dict[str, str]:
        """By name, what may be shown nowhere."""
        return {
            "the API key": self.api_key,
            "the operator token": self.operator_token,
            "the engine secret": self.engine,
            "a prompt": PROMPT_SECRET,
        }

    def of_engine(self, assignment: Assignment) -> tuple[str, str]:
        """Name and secret of an assignment's engine key."""
        name = f"the engine key of {assignment.assignment} in generation {assignment.generation}"
        return name, derive_engine_key(self.engine, assignment.assignment, assignment.generation)


def _key(name: str, secret: str, role: Role) -> ApiKey:
    return ApiKey(key=KeyId(name), tenant=TenantId("default"), digest=secret_digest(secret), roles=frozenset({role}))
