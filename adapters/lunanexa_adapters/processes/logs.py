"""Engines' logs: written by the engine itself, so that they outlive the agent, and kept short by the agent.

The engine's descriptor is in append mode. A log over its cap is copied (its newest part) to ``<name>.1`` and
truncated; the next write then lands at the new end. What is written between the copy and the truncation is
lost: that is the price of no pipe that would break with the agent.
"""

import os
from pathlib import Path
from typing import Final

import trio

from lunanexa_adapters.files.atomic import make_directory
from lunanexa_ports.errors import PortUnavailable

LINE_CHARACTERS: Final = 400
_TAIL_BYTES: Final = 65_536


class EngineLogs:
    """The directory of all engines' logs."""

    def __init__(self, directory: Path, cap_bytes: int) -> None:
        self._directory = directory
        self._cap_bytes = cap_bytes
        make_directory(directory)

    def open(self, log_name: str) -> int:
        """A descriptor for a new engine's output. Raises ``PortUnavailable``."""
        assert "/" not in log_name, log_name
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            return os.open(self._directory / log_name, flags, 0o600)
        except OSError as error:
            raise PortUnavailable(f"log {log_name} can't be opened: {error.strerror}") from error

    def last_lines(self, log_name: str, limit: int) -> tuple[str, ...]:
        try:
            with open(self._directory / log_name, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode("utf-8", "replace")
        except OSError:
            return ()
        lines = [_printable(line) for line in text.splitlines() if line.strip()]
        return tuple(lines[-limit:]) if limit > 0 else ()

    async def keep_capped(self, every_s: float = 5.0) -> None:
        """Runs for ever: looks at all logs and shortens those that are too long."""
        while True:
            self.shorten()
            await trio.sleep(every_s)

    def shorten(self) -> None:
        for path in sorted(self._directory.glob("*.log")):
            try:
                if path.stat().st_size > self._cap_bytes:
                    _shorten(path, self._cap_bytes // 4)
            except OSError:
                continue  # The next round tries again.


def _shorten(path: Path, kept_bytes: int) -> None:
    with open(path, "r+b") as file:
        file.seek(-kept_bytes, os.SEEK_END)
        newest = file.read(kept_bytes)
        fresh = path.with_name(f"{path.name}.1.new")
        fresh.write_bytes(newest)
        os.replace(fresh, path.with_name(f"{path.name}.1"))
        os.ftruncate(file.fileno(), 0)


def _printable(line: str) -> str:
    """Without what would steer a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in line[:LINE_CHARACTERS])
