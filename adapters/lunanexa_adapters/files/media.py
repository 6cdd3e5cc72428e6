"""A look at the places of an air-gapped node: what is there, or why it could not be used. Nothing is changed."""

import os
from pathlib import Path

from lunanexa_adapters.files.presence import is_there
from lunanexa_ports.errors import PortFault


def look_at_inbox(inbox: Path) -> str:
    """Raises ``PortFault``."""
    if not is_there(inbox):
        return f"{inbox} is not there now: it may be a medium that is not plugged in"
    if not inbox.is_dir() or not os.access(inbox, os.R_OK | os.X_OK):
        raise PortFault(f"{inbox} is no directory that this user may read: run `chmod go+rx {inbox}`, or name another")
    return f"{inbox} can be read"


def look_at_outbox(outbox: Path) -> str:
    """Raises ``PortFault``."""
    there = next(path for path in (outbox, *outbox.absolute().parents) if is_there(path))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise PortFault(f"in {there} this user may not write: run `chown $(id -u) {there}` as root, or name another")
    return f"{outbox} can be written" if there == outbox else f"{outbox} is made with the first report"
