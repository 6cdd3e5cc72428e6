"""The children port: its suite on the real and on the simulated implementation."""

import trio

from lunanexa_adapters.children.children import LinuxChildren
from lunanexa_ports.children import Child, ChildOrder
from lunanexa_ports.conformance.children import ChildPrograms, check_children
from lunanexa_simulation.children import SimulatedChild, SimulatedChildren, serve_until_terminated
from tests.proc import wait_for_own_sigterm


def shell(name: str, script: str) -> ChildOrder:
    return ChildOrder(name=name, argv=("/bin/sh", "-c", script), environment={"PATH": "/usr/bin:/bin"})


async def test_linux_children_conform() -> None:
    async def settled(child: Child) -> None:
        await wait_for_own_sigterm(child.pid)

    with LinuxChildren() as children:
        await check_children(
            children,
            ChildPrograms(
                exits_with_7=shell("exits", "exit 7"),
                serves=shell("serves", "trap 'exit 0' INT TERM; while :; do sleep 0.02; done"),
                stubborn=shell("stubborn", "trap '' TERM; while :; do sleep 0.02; done"),
                missing=ChildOrder(name="missing", argv=("/nowhere/program",), environment={}),
                settled=settled,
            ),
        )


async def exits_with_7(_: SimulatedChild) -> int:
    return 7


async def stubborn(_: SimulatedChild) -> int:
    await trio.sleep_forever()
    raise AssertionError("not reached")


async def test_simulated_children_conform(nursery: trio.Nursery) -> None:
    async def settled(_: Child) -> None:
        await trio.lowlevel.checkpoint()

    await check_children(
        SimulatedChildren(nursery, {"exits": exits_with_7, "serves": serve_until_terminated, "stubborn": stubborn}),
        ChildPrograms(
            exits_with_7=shell("exits", ""),
            serves=shell("serves", ""),
            stubborn=shell("stubborn", ""),
            missing=shell("missing", ""),
            settled=settled,
        ),
    )
