"""What a setting may hold: each kind reads text (a flag, a variable) and TOML values, and refuses the rest.

A kind's error says what was expected; the loader adds which setting it was and where the value came from.
"""

import enum
import os
import shlex
from abc import abstractmethod
from typing import Final, Generic, Protocol, TypeVar
from urllib.parse import parse_qsl, urlsplit

import attrs

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E", bound=enum.Enum)


class NotOfThisKind(ValueError):
    """The value does not fit. The message reads after "expected"."""


class Kind(Protocol[T_co]):
    """How values of one type are read. ``folder`` is where relative paths start."""

    @abstractmethod
    def from_text(self, text: str, folder: str) -> T_co:
        """From a flag or a variable. Raises :class:`NotOfThisKind`."""

    @abstractmethod
    def from_toml(self, value: object, folder: str) -> T_co:
        """From a configuration file. Raises :class:`NotOfThisKind`."""


class _TextKind(Kind[T], Generic[T]):
    """Kinds that TOML writes as a string too."""

    def from_toml(self, value: object, folder: str) -> T:
        if not isinstance(value, str):
            raise NotOfThisKind(f"a string, not {toml_type(value)}")
        return self.from_text(value, folder)


@attrs.frozen
class Text(_TextKind[str]):
    """Any text that is not empty."""

    def from_text(self, text: str, folder: str) -> str:
        if not text.strip():
            raise NotOfThisKind("text that is not empty")
        return text


@attrs.frozen
class Path(_TextKind[str]):
    """An absolute path; ``~`` is this user's home."""

    def from_text(self, text: str, folder: str) -> str:
        if not text.strip():
            raise NotOfThisKind("a path")
        return os.path.normpath(os.path.join(folder, os.path.expanduser(text)))


@attrs.frozen
class Several(Kind[tuple[T, ...]], Generic[T]):
    """Any number of one kind: an array in TOML, a flag given again, words in a text, quoted as a shell has it."""

    each: Kind[T]

    def from_text(self, text: str, folder: str) -> tuple[T, ...]:
        try:
            words = shlex.split(text)
        except ValueError:
            raise NotOfThisKind("words, with quotes that are closed") from None
        return tuple(self.each.from_text(word, folder) for word in words)

    def from_toml(self, value: object, folder: str) -> tuple[T, ...]:
        if isinstance(value, str):
            return self.from_text(value, folder)
        if not isinstance(value, list):
            raise NotOfThisKind(f"an array, not {toml_type(value)}")
        return tuple(self.each.from_toml(one, folder) for one in value)


@attrs.frozen
class Integer(Kind[int]):
    """An integer within bounds."""

    least: int
    most: int

    def from_text(self, text: str, folder: str) -> int:
        try:
            return self._checked(int(text))
        except ValueError:
            raise NotOfThisKind(self._wanted) from None

    def from_toml(self, value: object, folder: str) -> int:
        if type(value) is not int:
            raise NotOfThisKind(f"{self._wanted}, not {toml_type(value)}")
        return self._checked(value)

    @property
    def _wanted(self) -> str:
        return f"an integer from {self.least} to {self.most}"

    def _checked(self, number: int) -> int:
        if not self.least <= number <= self.most:
            raise NotOfThisKind(self._wanted)
        return number


@attrs.frozen
class Choice(_TextKind[E], Generic[E]):
    """One of an enumeration's values."""

    options: type[E]

    def from_text(self, text: str, folder: str) -> E:
        for option in self.options:
            if option.value == text:
                return option
        raise NotOfThisKind("one of " + ", ".join(str(option.value) for option in self.options))


@attrs.frozen
class HostPort:
    """Where a server listens. Port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@attrs.frozen
class Address(_TextKind[HostPort]):
    """``HOST:PORT``, ``[v6]:PORT``, ``:PORT`` and ``PORT``; the last two on loopback."""

    def from_text(self, text: str, folder: str) -> HostPort:
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        if not (port.isascii() and port.isdigit() and int(port) < 65_536) or any(c in host for c in " /[]@"):
            raise NotOfThisKind("HOST:PORT, a port from 0 to 65535")
        return HostPort(host, int(port))


_URL: Final = "a URL like http://127.0.0.1:8400 (plain HTTP, no path but /v1)"
_NODE_URL: Final = "a URL like https://10.0.0.1:8401 (with a port and without a path)"


@attrs.frozen
class HttpUrl(_TextKind[str]):
    """``http://host:port`` of a server; a trailing ``/v1``, as clients write it, is taken off."""

    def from_text(self, text: str, folder: str) -> str:
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise NotOfThisKind(_URL) from None
        plain = not (parts.query or parts.fragment or parts.username or parts.password)
        if parts.scheme != "http" or not parts.hostname or not plain or parts.path.strip("/") not in ("", "v1"):
            raise NotOfThisKind(_URL)
        return f"http://{HostPort(parts.hostname, 80 if port is None else port)}"


@attrs.frozen
class NodeUrl(_TextKind[str]):
    """``https://HOST:PORT`` at which a controller listens for nodes."""

    def from_text(self, text: str, folder: str) -> str:
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise NotOfThisKind(_NODE_URL) from None
        more = parts.query or parts.fragment or parts.username or parts.password or parts.path.strip("/")
        if parts.scheme != "https" or not parts.hostname or more or port is None:
            raise NotOfThisKind(_NODE_URL)
        return f"https://{HostPort(parts.hostname, port)}"


LOCAL: Final = "local"
"""In place of a server's URL: what answers on this machine's usual ports."""


@attrs.frozen
class ServerToAdopt(_TextKind[str]):
    """A URL as :class:`HttpUrl` has it, or the word ``local``."""

    def from_text(self, text: str, folder: str) -> str:
        if text.strip() == LOCAL:
            return LOCAL
        try:
            return HttpUrl().from_text(text, folder)
        except NotOfThisKind:
            raise NotOfThisKind(f"{_URL}, or the word {LOCAL}") from None


@attrs.frozen
class Secret:
    """A secret that was read. It shows itself to nobody but :attr:`value`."""

    value: str = attrs.field(repr=False)

    def __str__(self) -> str:
        return "(hidden)"


@attrs.frozen
class SecretText(Kind[Secret]):
    """A secret: never in a file of settings nor in argv, only named there (``env:NAME``, or ``<name>_file``)."""

    def from_text(self, text: str, folder: str) -> Secret:
        if not text.strip():
            raise NotOfThisKind("a secret that is not empty")
        return Secret(text.strip())

    def from_toml(self, value: object, folder: str) -> Secret:
        raise NotOfThisKind('a reference ("env:NAME"), or the setting with _file after its name')


@attrs.frozen
class StoreUrl:
    """The URL of a store. It may hold a password, and shows itself without one."""

    value: str = attrs.field(repr=False)

    def __str__(self) -> str:
        parts = urlsplit(self.value)
        user, at, place = parts.netloc.rpartition("@")
        return f"{parts.scheme}://{user.partition(':')[0]}{at}{place}{parts.path}"

    @property
    def has_password(self) -> bool:
        parts = urlsplit(self.value)
        in_query = any(name == "password" for name, _ in parse_qsl(parts.query))
        return ":" in parts.netloc.rpartition("@")[0] or in_query


@attrs.frozen
class StoreAddress(_TextKind[StoreUrl]):
    """``postgresql://USER@HOST:PORT/DATABASE``. A password may stand in a variable alone: files of settings and command
    lines are read by others."""

    def from_text(self, text: str, folder: str) -> StoreUrl:
        try:
            known = urlsplit(text).scheme in ("postgresql", "postgres")
        except ValueError:
            known = False
        if not known:
            raise NotOfThisKind("a URL like postgresql://USER@HOST:PORT/DATABASE")
        return StoreUrl(text)

    def from_toml(self, value: object, folder: str) -> StoreUrl:
        url = super().from_toml(value, folder)
        if url.has_password:
            raise NotOfThisKind("a URL without a password: put that in a file that ?passfile= names, or in PGPASSWORD")
        return url


_TOML_NAMES: Final = {str: "a string", int: "an integer", float: "a float", bool: "a boolean", list: "an array"}


def toml_type(value: object) -> str:
    return _TOML_NAMES.get(type(value), "a table" if isinstance(value, dict) else "a date or time")
