"""What an agent does with what it is told and what it remembers: who it is, whom it dials, where it is reached."""

import ipaddress
from collections.abc import Callable
from typing import Final

import attrs

from lunanexa_apps.node.identity import NodeIdentity
from lunanexa_apps.setting_kinds import Address, HostPort, NotOfThisKind
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.identity.token import EnrolmentToken
from lunanexa_core.ids import NodeId
from lunanexa_core.southbound.controllers import parse_controller_url

DATA_PORT: Final = 8410
ANY_ADDRESS: Final = "0.0.0.0"  # what is bound when the address that others use may be none of this machine's


@attrs.frozen(kw_only=True)
class Told:
    """What the command line says; ``None`` leaves it to what is known."""

    controllers: tuple[EngineAddress, ...] = ()
    token: EnrolmentToken | None = None
    data_address: HostPort | None = None
    no_data_address: bool = False
    data_listen: HostPort | None = None
    no_data_listener: bool = False


@attrs.frozen(kw_only=True)
class AgentPlan:
    """How the agent runs."""

    node: NodeId
    controllers: tuple[EngineAddress, ...]
    data_address: HostPort | None
    """Where gateways reach the data listener, or shall once the node is enrolled."""
    data_listen: HostPort | None
    """``None``: it has none."""

    @property
    def listen_word(self) -> str | None:
        """The same, as it is written."""
        return None if self.data_listen is None else str(self.data_listen)


@attrs.frozen(kw_only=True)
class Misfit:
    """What is told does not fit what is known."""

    field: str
    problem: str
    fix: str


def plan_agent(
    told: Told, identity: NodeIdentity | None, address_towards: Callable[[EngineAddress], str | None]
) -> AgentPlan | Misfit:
    """``address_towards`` is this machine's own address on the way to another."""
    if identity is None and told.token is None:
        return Misfit(
            field="--token-file",
            problem="this node is not enrolled",
            fix="have a token minted (lunanexa node token NAME --out FILE), then lunanexa-node enroll",
        )
    if identity is not None and told.token is not None and told.token.node != identity.node:
        return Misfit(
            field="--token-file",
            problem=f"it is for node {told.token.node}, and this data directory is that of {identity.node}",
            fix="choose another --data-dir, or have a token minted for this node",
        )
    controllers = told.controllers or _remembered(identity)
    if not controllers:
        return Misfit(
            field="--controller", problem="no controller is known", fix="name one: --controller https://HOST:PORT"
        )
    if told.token is not None and told.no_data_address and not told.token.loopback:
        return Misfit(
            field="--data-address",
            problem="this token is not for a node of the controller's own machine, so that gateways must reach it",
            fix="name HOST:PORT, or have a token minted with --loopback",
        )
    new = identity is None or (told.token is not None and told.token.token != identity.token)
    address = _asked(told, controllers, address_towards) if new else _bound(identity)
    return AgentPlan(
        node=told.token.node if identity is None and told.token is not None else _node(identity),
        controllers=controllers,
        data_address=address,
        data_listen=None if told.no_data_listener else told.data_listen or listening(address),
    )


def listening(address: HostPort | None) -> HostPort | None:
    """Where to listen so as to be reached there: a name may mean another machine's address, or loopback."""
    if address is None:
        return None
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        return HostPort(ANY_ADDRESS, address.port)
    return address


def _asked(
    told: Told, controllers: tuple[EngineAddress, ...], address_towards: Callable[[EngineAddress], str | None]
) -> HostPort | None:
    if told.data_address is not None:
        return told.data_address
    if told.token is not None and told.token.loopback:
        return None
    own = address_towards(controllers[0])
    return None if own is None else HostPort(own, DATA_PORT)


def _bound(identity: NodeIdentity | None) -> HostPort | None:
    if identity is None or identity.data_address is None:
        return None
    try:
        return Address().from_text(identity.data_address, "")
    except NotOfThisKind:
        return None


def _node(identity: NodeIdentity | None) -> NodeId:
    assert identity is not None
    return identity.node


def _remembered(identity: NodeIdentity | None) -> tuple[EngineAddress, ...]:
    found = () if identity is None else tuple(parse_controller_url(url) for url in identity.controllers)
    return tuple(one for one in found if one is not None)
