"""Driven port: child processes of a supervisor, which end with it."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Final, Protocol

import attrs

SUPERVISOR_FD: Final = "LUNANEXA_SUPERVISOR_FD"
"""The variable that names a child's end of the pipe."""


@attrs.frozen(kw_only=True)
class ChildOrder:
    """One child. It gets :data:`SUPERVISOR_FD`: the read end of a pipe that the supervisor holds
    open; when it closes the child ends by itself."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    output: str | None = None
    """The file that gets standard output and error, after what it holds; ``None``: they are the supervisor's."""


class Child(Protocol):
    """A started child process in a process group of its own, so that Ctrl-C reaches the supervisor only."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """Its process id."""

    @abstractmethod
    async def wait(self) -> int:
        """The exit status, negative for a signal. Repeatable, cancellable."""

    @abstractmethod
    def terminate(self) -> None:
        """SIGTERM; nothing happens when it is gone already."""

    @abstractmethod
    def interrupt(self) -> None:
        """SIGINT; nothing happens when it is gone already. After :meth:`terminate` it is the second word, to end
        at once: two SIGTERMs could merge into one."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL to its group; nothing happens when it is gone already."""


class Children(Protocol):
    """Starts child processes."""

    @abstractmethod
    async def start(self, order: ChildOrder) -> Child:
        """Starts a child. Raises ``PortFault`` when the program can't be run."""
