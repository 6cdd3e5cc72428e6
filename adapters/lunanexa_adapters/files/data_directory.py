"""A look at a data directory: who may read its secrets, and how much room is left. Nothing is changed."""

import os
import shutil
from pathlib import Path


def open_to_others(*folders: Path) -> tuple[str, ...]:
    """Of what nobody else may read: these folders, and what is in them, as far as this user may look."""
    secret = [*folders]
    secret += [path for folder in folders if os.access(folder, os.R_OK | os.X_OK) for path in folder.iterdir()]
    return tuple(str(path) for path in secret if path.exists() and path.stat().st_mode & 0o077)


def free_mib(place: Path) -> int | None:
    """``None``: nobody can say, as of a place that is not there."""
    try:
        return shutil.disk_usage(place).free >> 20
    except OSError:
        return None
