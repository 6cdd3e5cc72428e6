"""What every node store must do, tried on an empty store that may be opened several times."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeAlias

import trio

from lunanexa_core.ids import AssignmentId
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.node_store import NodeStore

OpenNodeStore: TypeAlias = Callable[[], AbstractAsyncContextManager[NodeStore]]
"""Opens the one store under test, as an agent that starts would."""
Check: TypeAlias = Callable[[OpenNodeStore], Awaitable[None]]

DEADLINE_S: Final = 30.0


async def check_empty(store: OpenNodeStore) -> None:
    async with store() as node:
        assert await node.get("desired") is None
        assert dict(await node.replicas()) == {}


async def check_start_numbers_rise(store: OpenNodeStore) -> None:
    """No number comes twice: not at the same time, not after the store was opened again."""
    numbers: list[int] = []
    async with store() as node:

        async def take() -> None:
            numbers.append(await node.next_start_number())

        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(take)
        before = max(numbers)
    async with store() as node:
        after = await node.next_start_number()
    assert len(set(numbers)) == 8
    assert after > before


async def check_facts_are_kept(store: OpenNodeStore) -> None:
    """A fact is what was put last, byte for byte, also after the store was opened again."""
    every_byte = bytes(range(256)) * 64
    async with store() as node:
        await node.put("desired", b"first")
        await node.put("desired", every_byte)
        await node.put("fences", b"")
        assert await node.get("desired") == every_byte
    async with store() as node:
        assert await node.get("desired") == every_byte
        assert await node.get("fences") == b""
        assert await node.get("Desired") is None


async def check_replicas_are_kept(store: OpenNodeStore) -> None:
    """Replica records come ordered by assignment, are replaced, and are gone when removed."""
    names = [AssignmentId(f"asg_{letter}") for letter in "cab"]
    async with store() as node:
        for name in names:
            await node.put_replica(name, name.encode())
        await node.put_replica(names[0], b"again")
        await node.put_replica(names[1], None)
        await node.put_replica(names[1], None)
    async with store() as node:
        replicas = await node.replicas()
        assert list(replicas.items()) == [(names[2], b"asg_b"), (names[0], b"again")]


async def check_cancelled_put_is_done(store: OpenNodeStore) -> None:
    """A cancelled agent has written what it was writing: intent comes before the side effect."""
    async with store() as node:
        with trio.CancelScope() as scope:
            scope.cancel()
            await node.put_replica(AssignmentId("asg_a"), b"intent")
        assert dict(await node.replicas()) == {"asg_a": b"intent"}


async def check_closed(store: OpenNodeStore) -> None:
    """Closing twice is once, and a closed store refuses instead of hanging."""
    async with store() as node:
        await node.aclose()
        await node.aclose()
        with trio.fail_after(DEADLINE_S):
            try:
                await node.put("desired", b"late")
            except PortUnavailable:
                pass
            else:
                raise AssertionError("a closed node store has taken a fact")
    async with store() as node:
        assert await node.get("desired") is None


CHECKS: Final[tuple[Check, ...]] = (
    check_empty,
    check_start_numbers_rise,
    check_facts_are_kept,
    check_replicas_are_kept,
    check_cancelled_put_is_done,
    check_closed,
)
