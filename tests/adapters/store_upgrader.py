"""A process that dies by SIGKILL in the middle of opening a store whose schema is older than its program's.

Usage: python -m tests.adapters.writers, then ``upgrade CALL PATH`` on its stdin.
"""

import os
import signal
import sqlite3
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final

from lunanexa_adapters.sqlite.journal_reader import JOURNAL_SCHEMA
from lunanexa_adapters.sqlite.schema import Schema, open_store

NEWER: Final = Schema(
    "journal",
    (
        *JOURNAL_SCHEMA.steps,
        ("CREATE TABLE more (one INTEGER)", "INSERT INTO more SELECT sequence FROM row"),
        ("CREATE INDEX more_one ON more (one)", "ALTER TABLE head ADD COLUMN last INTEGER NOT NULL DEFAULT 0"),
    ),
)


def is_outside(called: Any) -> bool:
    """Whether a function of C touches a file."""
    of = getattr(called, "__self__", None)
    return isinstance(of, sqlite3.Connection | sqlite3.Cursor) or called.__module__ in ("posix", "_sqlite3", "_io")


def upgrade(call: int, path: Path) -> None:
    """Opens the store in ``path`` with :data:`NEWER`, and dies right before its ``call``-th call of SQLite or of the
    system: a statement, a sync, a rename, whatever it is."""
    left = call

    def count(_frame: FrameType, event: str, called: Any) -> None:
        nonlocal left
        if event == "c_call" and is_outside(called):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    connection = open_store(path, NEWER)
    sys.setprofile(None)
    connection.close()
