"""The children port: its suite on the real and on the simulated implementation."""

import sys
from pathlib import Path

import pytest
import trio

from lunanexa_adapters.children.children import LinuxChildren
from lunanexa_ports.children import ChildOrder
from lunanexa_ports.conformance.children import ChildPrograms, check_children
from lunanexa_simulation.children import SimulatedChild, SimulatedChildren, serve_until_terminated

# Signals are blocked from the first instruction on: a signal that comes before Python runs waits for sigwait.
SERVES = "trap 'exit 0' TERM; : > \"$READY\"; while :; do sleep 0.05; done"


def order(name: str, script: str) -> ChildOrder:
    return ChildOrder(name=name, argv=("/bin/sh", "-c", script), environment={"PATH": "/usr/bin:/bin"})


async def exits_with_7(_: SimulatedChild) -> int:
    return 7


async def stubborn(_: SimulatedChild) -> int:
    await trio.sleep_forever()
    raise AssertionError("not reached")


async def test_simulated_children_conform(nursery: trio.Nursery) -> None:
    programs = {"exits": exits_with_7, "serves": serve_until_terminated, "stubborn": stubborn}
    await check_children(
        SimulatedChildren(nursery, programs),
        ChildPrograms(
            exits_with_7=order("exits", ""),
            serves=order("serves", ""),
            stubborn=order("stubborn", ""),
            missing=order("missing", ""),
        ),
    )
