"""The ready file: how a program learns that an installation serves, and who its processes are.

It is written when a first call would succeed and removed at the stop. It is replaced as a whole, so that a
reader never sees half of it, and holds secrets, so that only this user can read it.
"""

import json
from collections.abc import Mapping

import attrs

from lunanexa_ports.private_files import PrivateFiles


@attrs.frozen(kw_only=True)
class ReadyFacts:
    """What the file says. A pid is ``None`` while that process is being replaced, or is not ours."""

    base_url: str
    api_key: str = attrs.field(repr=False)
    operator_token: str = attrs.field(repr=False)
    model: str
    """The first of them."""
    models: tuple[str, ...]
    pids: Mapping[str, int | None]


class ReadyFile:
    """Keeps the file ``name`` of ``files``."""

    def __init__(self, files: PrivateFiles, name: str) -> None:
        self._files = files
        self._name = name
        self._written: ReadyFacts | None = None

    def write(self, facts: ReadyFacts) -> None:
        """Writes the file when it would say something new. Raises as the port does."""
        if facts == self._written:
            return
        self._files.replace(self._name, json.dumps(attrs.asdict(facts), indent=2).encode() + b"\n")
        self._written = facts

    def remove(self) -> None:
        """Removes it, also one that a killed predecessor left. Idempotent. Raises as the port does."""
        self._written = None
        self._files.remove(self._name)
