"""The ready file: how a program learns that an installation serves, and who its processes are.

It exists exactly while a first call would succeed. It is replaced as a whole, so that a reader never sees
half of it, and holds secrets, so that only this user can read it.
"""

import json
import os
from collections.abc import Mapping

import attrs

from lunanexa_apps.up.installation import write_private


@attrs.frozen(kw_only=True)
class ReadyFacts:
    """What the file says. A pid is ``None`` while that process is being replaced, or is not ours."""

    base_url: str
    api_key: str = attrs.field(repr=False)
    operator_token: str = attrs.field(repr=False)
    model: str
    pids: Mapping[str, int | None]


class ReadyFile:
    """Keeps the file at ``path`` (``None``: keeps nothing)."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._written: ReadyFacts | None = None

    def write(self, facts: ReadyFacts) -> None:
        """Writes the file when it would say something new. Raises ``OSError``."""
        if self._path is None or facts == self._written:
            return
        document = attrs.asdict(facts)
        write_private(self._path, json.dumps(document, indent=2).encode() + b"\n")
        self._written = facts

    def remove(self) -> None:
        """Removes it, also one that a killed predecessor left. Idempotent."""
        self._written = None
        if self._path is not None:
            try:
                os.unlink(self._path)
            except FileNotFoundError:
                return
