"""Replays in a process of their own, which runs when nothing else wants the processor.

The order, the store's address in it, goes through standard input: arguments and variables are shown to others. The pipe
stays open until the answer is there, so that a replay also ends with a controller that is killed.
"""

import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from lunanexa_core.canonical import JsonValue, NotCanonical, canonical_json, strict_json
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.replays import Replays

KEPT: Final = "kept"
DIFFERS: Final = "differs"
CARRIED: Final = "carried"
UNAVAILABLE: Final = "unavailable"
FAULT: Final = "fault"

ORDER_BYTES_MAX: Final = 64 << 10
ANSWER_BYTES_MAX: Final = 256 << 20
"""A carry holds each idempotency key that is bound; a controller may have 100,000 for each tenant."""
LOWEST: Final = 19
_END_S: Final = 10.0


class ChildReplays(Replays):
    """One at a time; who asks meanwhile waits for its turn. ``program`` is started for each, with ``store`` in its
    order. Of the lowest niceness it runs when nobody else wants the processor, else as nice as told."""

    def __init__(
        self,
        program: Sequence[str],
        store: Mapping[str, JsonValue],
        environment: Mapping[str, str],
        *,
        niceness: int = LOWEST,
    ) -> None:
        self._program = tuple(program)
        self._store = dict(store)
        self._environment = dict(environment)
        self._niceness = niceness
        self._turn = trio.Lock()

    async def snapshot(self, until: int, digest: str) -> bool:
        said, _ = await self._ask({"until": until, "digest": digest})
        return said == KEPT

    async def carry(self, until: int) -> bytes:
        _, carry = await self._ask({"until": until})
        return carry

    async def _ask(self, order: Mapping[str, JsonValue]) -> tuple[str, bytes]:
        line = canonical_json({**self._store, **order}) + b"\n"
        assert len(line) <= ORDER_BYTES_MAX, "an order is short"
        async with self._turn, self._started() as process:
            assert process.stdin is not None
            assert process.stdout is not None
            answer = b""
            with contextlib.suppress(trio.BrokenResourceError):  # It died; its status says so below.
                await process.stdin.send_all(line)
                answer = await _read(process.stdout)
            status = await process.wait()
        return _understood(answer, status)

    @asynccontextmanager
    async def _started(self) -> AsyncIterator[trio.Process]:
        """The process, which is gone after the block."""
        try:
            process = await trio.lowlevel.open_process(
                self._program,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=self._environment,
                process_group=0,
            )
        except OSError as error:
            raise PortUnavailable(f"no process could be started for a replay ({error.strerror})") from error
        try:
            _give_way(process.pid, self._niceness)
            yield process
        finally:
            process.kill()
            with trio.move_on_after(_END_S, shield=True):
                await process.wait()
                assert process.stdin is not None
                assert process.stdout is not None
                await process.stdin.aclose()
                await process.stdout.aclose()


def _give_way(pid: int, niceness: int) -> None:
    """As far as this machine allows. What the disk is asked for follows the processor's priority."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
        if niceness == LOWEST:
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


async def _read(stream: trio.abc.ReceiveStream) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := await stream.receive_some():
        parts.append(bytes(part))
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise PortFault(f"a replay answered more than {ANSWER_BYTES_MAX} bytes")
    return b"".join(parts)


def _understood(answer: bytes, status: int) -> tuple[str, bytes]:
    line, _, rest = answer.partition(b"\n")
    try:
        told = strict_json(line)
    except NotCanonical:
        told = None
    if status != 0 or not isinstance(told, dict):
        raise PortUnavailable(f"the process of a replay ended with status {status}; its own words are in the log")
    said = told["said"]
    if said == UNAVAILABLE:
        raise PortUnavailable(told["text"])
    if said == FAULT:
        raise PortFault(told["text"])
    return said, rest
