"""What tests read of other processes in /proc."""

import signal
from pathlib import Path

import trio

TERM_BIT = 1 << (signal.SIGTERM - 1)


async def wait_for_own_sigterm(pid: int) -> None:
    """Returns when the process catches or ignores SIGTERM, so that the signal no longer has its default effect."""
    with trio.fail_after(30):
        while not _signals(pid, "SigCgt", "SigIgn") & TERM_BIT:
            await trio.sleep(0.002)


def _signals(pid: int, *names: str) -> int:
    masks = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in names:
            masks |= int(value, 16)
    return masks
