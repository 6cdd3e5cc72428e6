"""The process that cleans up after a run that can't any more: its own was killed without a word.

Controller and agents notice that by themselves, unless they are stopped; engines go on, since they outlive their agent.
Each run starts this file beside them (``python -m lunanexa_simulation.real.reaper FOLDER keep|remove``), and kills it
when it has ended all processes itself. It has little to import, so that it costs nothing.
"""

import os
import select
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from lunanexa_ports.children import SUPERVISOR_FD, ChildOrder
from lunanexa_simulation.real.proc import ours_that_hold

KEEP: Final = "keep"
REMOVE: Final = "remove"
_END_S: Final = 1.0


def reaper_order(folder: Path, environment: Mapping[str, str], *, keep: bool) -> ChildOrder:
    """``keep``: whether the folder stays, with all that was written."""
    argv = (sys.executable, "-m", __name__, str(folder), KEEP if keep else REMOVE)
    return ChildOrder(name="reaper", argv=argv, environment=environment)


def main(folder: Path, *, keep: bool) -> None:
    """Waits until the supervisor is gone, then ends all that is left of its run."""
    while os.read(int(os.environ[SUPERVISOR_FD]), 64):
        pass
    # Again and again: one may just be starting another.
    while left := ours_that_hold(folder):
        for pid in left:
            _end(pid)
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [], _END_S)
        finally:
            os.close(process)


if __name__ == "__main__":
    main(Path(sys.argv[1]), keep=sys.argv[2] == KEEP)
