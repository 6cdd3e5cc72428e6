"""Private files in memory. A folder outlives the processes that open it."""

from types import TracebackType

import attrs

from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.private_files import FILE_BYTES_MAX, HeldLock, LockHeld, PrivateFiles


@attrs.define(kw_only=True)
class PrivateFolder:
    """What is there, and its fault: ``unavailable`` may be set at any time."""

    path: str = "/simulated"
    files: dict[str, bytes] = attrs.Factory(dict)
    holders: dict[str, str] = attrs.Factory(dict)
    unavailable: bool = False


class SimulatedPrivateFiles(PrivateFiles):
    """One process's opening of ``folder``."""

    def __init__(self, folder: PrivateFolder) -> None:
        self._folder = folder
        self._dead = False

    def kill(self) -> None:
        """The process is killed, and nothing it still tries gets out. Idempotent."""
        self._dead = True

    def read(self, name: str) -> bytes | None:
        self._check(name)
        return self._folder.files.get(name)

    def create(self, name: str, data: bytes) -> bool:
        if self.read(name) is not None:
            return False
        self.replace(name, data)
        return True

    def replace(self, name: str, data: bytes) -> None:
        assert len(data) <= FILE_BYTES_MAX, name
        self._check(name)
        self._folder.files[name] = data

    def remove(self, name: str) -> None:
        self._check(name)
        self._folder.files.pop(name, None)

    def lock(self, name: str, holder: str) -> HeldLock | LockHeld:
        self._check(name)
        held_by = self._folder.holders.get(name)
        if held_by is not None:
            return LockHeld(held_by)
        self._folder.holders[name] = holder
        return SimulatedLock(self._folder, name)

    def place(self, name: str) -> str:
        return f"{self._folder.path}/{name}"

    def _check(self, name: str) -> None:
        if self._dead:
            raise PortUnavailable("the simulated process is dead")
        if self._folder.unavailable:
            raise PortUnavailable(f"{self.place(name)} can't be reached: make its simulated folder available")


class SimulatedLock(HeldLock):
    """Held until it is released; a process that dies must be made to release it."""

    def __init__(self, folder: PrivateFolder, name: str) -> None:
        self._folder: PrivateFolder | None = folder
        self._name = name

    def release(self) -> None:
        if self._folder is not None:
            del self._folder.holders[self._name]
            self._folder = None

    def __enter__(self) -> "SimulatedLock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
