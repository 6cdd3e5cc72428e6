"""The world as the composition root hands it in."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path

import attrs

from lunanexa_ports.children import Children
from lunanexa_ports.http_client import HttpClient
from lunanexa_ports.journal import JournalReader


@attrs.frozen(kw_only=True)
class RealTools:
    """Adapters on this machine."""

    children: Callable[[], AbstractContextManager[Children]]
    """Processes of a supervisor; those that are left end with the block."""
    http: Callable[[], HttpClient]
    """A client; who asks for it closes it."""
    open_journal: Callable[[Path], AbstractAsyncContextManager[JournalReader]]
    """The journal of a controller that does not run."""
