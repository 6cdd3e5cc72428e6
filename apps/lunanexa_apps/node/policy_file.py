"""The policy of a machine's owner, as it is written: TOML, with :class:`NodePolicy`'s members for keys."""

import tomllib
from typing import Any, Final

import attrs

from lunanexa_apps.node.findings import Finding, note
from lunanexa_apps.setting_kinds import toml_type
from lunanexa_core.nodes.policy import NO_RULES, NodePolicy
from lunanexa_ports.errors import PortFault

DEFAULT_PLACE: Final = "/etc/lunanexa/node-policy.toml"


@attrs.frozen
class OwnersPolicy:
    """What the agent was started with. ``found`` is ``None`` where there is no file."""

    place: str
    found: NodePolicy | None

    @property
    def rules(self) -> NodePolicy:
        return NO_RULES if self.found is None else self.found

    def describe(self) -> Finding:
        """As a step of its own."""
        if self.found is None:
            return note("policy", f"there is no {self.place}: controllers may have anything run here")
        shown = attrs.asdict(self.found, filter=lambda field, value: value != field.default)
        rules = "; ".join(f"{name} {_shown(value)}" for name, value in shown.items())
        return Finding(step="policy", found=f"{self.place}: {rules or 'no rule'}")


def parse_policy(place: str, data: bytes) -> NodePolicy:
    """What the file at ``place`` says. Raises ``PortFault`` that names the key and the fix."""
    try:
        document = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise PortFault(f"{place} is not TOML: {error}") from error
    known = attrs.fields_dict(NodePolicy)
    for name in document:
        if name not in known:
            raise PortFault(f"{place}: unknown key {name!r}; there are {', '.join(known)}")
    policy = NodePolicy(**{name: _value(place, name, value) for name, value in document.items()})
    fault = policy.fault()
    if fault is not None:
        raise PortFault(f"{place}: {fault[0]} {fault[1]}")
    return policy


def _value(place: str, name: str, value: object) -> Any:
    match name:
        case "memory_mib" | "replicas":
            if type(value) is int:
                return value
            wanted = "an integer"
        case "authority":
            if isinstance(value, str):
                return value
            wanted = "a string"
        case _:
            if isinstance(value, list) and all(isinstance(one, str) for one in value):
                return tuple(value)
            wanted = "an array of strings"
    raise PortFault(f"{place}: {name} must be {wanted}, and it is {toml_type(value)}")


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value)
