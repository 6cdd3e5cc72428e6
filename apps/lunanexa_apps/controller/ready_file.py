"""The ready file of a controller: how a program learns that it serves, where, and by which secrets.

It is written when a first call would succeed and removed at the end. It is replaced as a whole, so that a reader never
sees half of it, and only this user can read it.
"""

import json

import attrs

from lunanexa_ports.private_files import PrivateFiles


@attrs.frozen(kw_only=True)
class ControllerFacts:
    """What the file says."""

    base_url: str
    node_url: str | None
    """Where nodes enrol; ``None``: nowhere."""
    ca_fingerprint: str | None
    """Of the authority that issues certificates; ``None`` while nobody has led the store."""
    operator_token: str = attrs.field(repr=False)
    api_key: str = attrs.field(repr=False)
    pid: int


class ControllerReadyFile:
    """Keeps the file ``name`` of ``files``; ``None``: nobody asked for one. Raises as the port does."""

    def __init__(self, files: PrivateFiles | None, name: str = "") -> None:
        self._files = files
        self._name = name

    def write(self, facts: ControllerFacts) -> None:
        if self._files is not None:
            self._files.replace(self._name, json.dumps(attrs.asdict(facts), indent=2).encode() + b"\n")

    def remove(self) -> None:
        """Also one that a killed predecessor left."""
        if self._files is not None:
            self._files.remove(self._name)
