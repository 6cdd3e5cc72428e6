"""An installation on this machine: its data directory, the secrets in it, and who runs it now.

Secrets are made once, each in a file of its own that only this user can read; the controller and the node
agent read them there, so that none of them ever stands in an argument or a variable.
"""

import errno
import fcntl
import json
import os
from types import TracebackType
from typing import Final, Self

import attrs

from lunanexa_core.keys import API_KEY_PREFIX, weak_secret
from lunanexa_ports.ids import IdSource

PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700


class InstallationFault(Exception):
    """The data directory can't be used; the message says why and what mends it."""


@attrs.frozen
class Layout:
    """Where things lie below the data directory."""

    data_dir: str

    @property
    def lock(self) -> str:
        return os.path.join(self.data_dir, "up.lock")

    @property
    def api_key(self) -> str:
        return os.path.join(self.data_dir, "controller", "secrets", "api_key")

    @property
    def operator_token(self) -> str:
        return os.path.join(self.data_dir, "controller", "secrets", "operator_token")

    @property
    def node_key(self) -> str:
        return os.path.join(self.data_dir, "controller", "secrets", "node_key")

    @property
    def controller_key(self) -> str:
        """The node's copy of :attr:`node_key`."""
        return os.path.join(self.data_dir, "node", "secrets", "controller_key")

    @property
    def listen(self) -> str:
        """Written by a controller that serves: ``{"host", "port", "base_url"}``."""
        return os.path.join(self.data_dir, "controller", "listen")


@attrs.frozen(kw_only=True)
class Installation:
    """A data directory with its secrets. ``fresh``: they were made just now."""

    layout: Layout
    api_key: str = attrs.field(repr=False)
    operator_token: str = attrs.field(repr=False)
    fresh: bool = False


def prepare_installation(data_dir: str, ids: IdSource) -> Installation:
    """Makes what is missing, keeps what is there. Raises :class:`InstallationFault`."""
    layout = Layout(data_dir)
    try:
        _make_folders(layout)
        fresh = not os.path.exists(layout.api_key)
        api_key = _keep_or_make(layout.api_key, API_KEY_PREFIX + ids.secret())
        operator_token = _keep_or_make(layout.operator_token, ids.secret())
        node_key = _keep_or_make(layout.node_key, ids.secret())
        if _keep_or_make(layout.controller_key, node_key) != node_key:
            raise InstallationFault(
                f"{layout.controller_key} and {layout.node_key} differ; remove the first to copy it again"
            )
    except OSError as error:
        raise InstallationFault(f"{error.filename or data_dir}: {error.strerror}; choose another --data-dir") from None
    return Installation(layout=layout, api_key=api_key, operator_token=operator_token, fresh=fresh)


def read_installation(data_dir: str) -> Installation | None:
    """An installation that exists, or ``None``. Raises :class:`InstallationFault` when it can't be read."""
    layout = Layout(data_dir)
    if not os.path.exists(layout.api_key):
        return None
    try:
        return Installation(
            layout=layout, api_key=_read_secret(layout.api_key), operator_token=_read_secret(layout.operator_token)
        )
    except OSError as error:
        raise InstallationFault(f"{error.filename}: {error.strerror}") from None


def read_address(layout: Layout) -> tuple[str, int] | None:
    """Where the installation's controller said that it listens; ``None`` when none has run yet."""
    try:
        with open(layout.listen, encoding="utf-8") as file:
            document = json.loads(file.read(4096))
        host, port = document["host"], document["port"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return (host, port) if isinstance(host, str) and isinstance(port, int) else None


def _make_folders(layout: Layout) -> None:
    os.makedirs(layout.data_dir, mode=PRIVATE_FOLDER, exist_ok=True)
    for path in (layout.api_key, layout.controller_key):
        os.makedirs(os.path.dirname(path), mode=PRIVATE_FOLDER, exist_ok=True)


def _keep_or_make(path: str, secret: str) -> str:
    """The secret in ``path``; ``secret`` is written there first when there is none."""
    if not os.path.exists(path):
        write_private(path, secret.encode() + b"\n")
    return _read_secret(path)


def _read_secret(path: str) -> str:
    if os.stat(path).st_mode & 0o077:
        os.chmod(path, PRIVATE_FILE)
    with open(path, encoding="ascii", errors="replace") as file:
        secret = file.read(4096).strip()
    weakness = weak_secret(secret)
    if weakness is not None:
        raise InstallationFault(f"{path}: the secret is {weakness.value}; remove the file to have a new one made")
    return secret


def write_private(path: str, data: bytes) -> None:
    """Writes a file that only this user can read, whole or not at all, durably."""
    temporary = f"{path}.{os.getpid()}.tmp"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, PRIVATE_FILE)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@attrs.frozen
class Holder:
    """Who runs the installation now, as far as its lock file tells."""

    pid: int | None

    def __str__(self) -> str:
        return "another process" if self.pid is None else f"process {self.pid}"


class UpLock:
    """The right to run an installation: a kernel lock, so that no crash leaves it behind."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.ftruncate(self._handle, 0)
        os.close(self._handle)


def take_lock(data_dir: str) -> UpLock | Holder:
    """The lock, or who has it. Raises :class:`InstallationFault`."""
    try:
        os.makedirs(data_dir, mode=PRIVATE_FOLDER, exist_ok=True)
        handle = os.open(Layout(data_dir).lock, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    except OSError as error:
        raise InstallationFault(f"{error.filename or data_dir}: {error.strerror}; choose another --data-dir") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        text = os.read(handle, 32).decode("ascii", "replace").strip()
        os.close(handle)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise InstallationFault(f"{data_dir}: no file locks here ({error.strerror}); choose a local disk") from None
        return Holder(int(text) if text.isdigit() else None)
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return UpLock(handle)
