"""Processes to be killed, forked from one that has paid for their imports, so that hundreds of them cost little.

``python -m tests.adapters.writers`` is that one. A line on its stdin names a work and what it needs (``sqlite
DIRECTORY``, ``postgres URL``, ``identity CALL FOLDER``, ``upgrade CALL PATH``); what the work says goes to stdout, with
``pid N`` somewhere in it and ``ended STATUS`` after it.
"""

import os
import signal
import subprocess
import sys
import traceback
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import trio

from tests.adapters import identity_renewer, postgres_writer, store_upgrader, store_writer

ROOT: Final = Path(__file__).parents[2]
LIMIT_S: Final = 60


class Writers:
    """One writer at a time: :meth:`start` it, hear it :meth:`until` it said enough, :meth:`kill` it, and take what
    it was told when it has :meth:`ended`. ``told`` holds the numbers that it said so far, by what it said."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._said = b""
        self.told: dict[str, list[int]] = defaultdict(list)

    async def start(self, work: str, *needed: object) -> None:
        self.told = defaultdict(list)
        assert self._process.stdin is not None
        await self._process.stdin.send_all(" ".join([work, *map(str, needed)]).encode() + b"\n")
        await self.until("pid", 1)

    async def until(self, kind: str, count: int) -> None:
        """Returns once it has said ``kind`` so often, or has ended."""
        assert self._process.stdout is not None
        with trio.fail_after(LIMIT_S):
            while len(self.told[kind]) < count and not self.told["ended"]:
                chunk = await self._process.stdout.receive_some()
                assert chunk, "the process of all writers has ended"
                *lines, self._said = (self._said + chunk).split(b"\n")
                for line in lines:
                    said, _, number = line.decode().partition(" ")
                    # Without a number: it was killed while it said so.
                    if number:
                        self.told[said].append(int(number))

    def kill(self) -> None:
        for pid in self.told["pid"]:
            if not self.told["ended"]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    async def ended(self) -> dict[str, list[int]]:
        """All that it was told, once it is gone."""
        await self.until("ended", 1)
        return self.told


@asynccontextmanager
async def writers() -> AsyncIterator[Writers]:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "tests.adapters.writers"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    running = Writers(process)
    try:
        yield running
    finally:
        with trio.CancelScope(shield=True):
            running.kill()
            await process.stdin.aclose()
            await process.wait()
            await process.stdout.aclose()


def _work(line: str) -> None:
    name, *needed = line.split()
    if name == "sqlite":
        trio.run(store_writer.write, Path(needed[0]))
    elif name == "postgres":
        trio.run(postgres_writer.write, needed[0])
    elif name == "identity":
        identity_renewer.renew(int(needed[0]), Path(needed[1]))
    else:
        store_upgrader.upgrade(int(needed[0]), Path(needed[1]))


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _work(line)
                status = 0
            finally:  # A child must never go on as its parent, whatever it met.
                if status:
                    traceback.print_exc()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        print("pid", child, flush=True)
        _, ended = os.waitpid(child, 0)
        print("\nended", os.waitstatus_to_exitcode(ended), flush=True)


if __name__ == "__main__":
    main()
