"""Whether there is something at a place that a person named."""

from pathlib import Path

from lunanexa_ports.errors import PortFault


def is_there(path: Path) -> bool:
    """Raises ``PortFault`` where this user may not know, or nothing can be."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise PortFault(
            f"{path} can't be looked at ({error.strerror}): let this user see it, be another, or name another place"
        ) from error
    return True
