"""What only real children show: groups, the supervisor's pipe, and what they inherit."""

import os
import signal
import sys
from pathlib import Path

import attrs
import pytest
import trio

from lunanexa_adapters.children.children import LinuxChildren
from lunanexa_ports.children import ChildOrder
from lunanexa_ports.errors import PortFault

pytestmark = pytest.mark.thorough


def python(script: str) -> ChildOrder:
    return ChildOrder(name="child", argv=(sys.executable, "-S", "-c", script), environment={"MARK": "5"})


async def test_a_child_has_a_group_of_its_own() -> None:
    with LinuxChildren() as children, trio.fail_after(30):
        child = await children.start(python("import os; os.read(int(os.environ['LUNANEXA_SUPERVISOR_FD']), 1)"))
        assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
        child.kill()
        assert await child.wait() == -signal.SIGKILL


async def test_a_child_sees_the_end_of_its_supervisor() -> None:
    script = "import os, sys; sys.exit(40 + len(os.read(int(os.environ['LUNANEXA_SUPERVISOR_FD']), 1)))"
    with trio.fail_after(30):
        with LinuxChildren() as children:
            child = await children.start(python(script))
        assert await child.wait() == 40


async def test_a_child_gets_its_environment_and_nothing_else() -> None:
    # LC_CTYPE is Python's own doing, in a locale without UTF-8.
    script = "import os, sys; sys.exit(len({*os.environ} - {'LC_CTYPE'}) + 10 * (os.environ['MARK'] == '5'))"
    with LinuxChildren() as children, trio.fail_after(30):
        assert await (await children.start(python(script))).wait() == 12


async def test_killing_takes_the_group() -> None:
    read_end, write_end = os.pipe()
    script = f"exec 3>/proc/{os.getpid()}/fd/{write_end}; sleep 1000 & echo ready >&3; wait"
    order = ChildOrder(name="child", argv=("/bin/sh", "-c", script), environment={"PATH": "/usr/bin:/bin"})
    with LinuxChildren() as children, trio.fail_after(30):
        child = await children.start(order)
        assert await trio.to_thread.run_sync(os.read, read_end, 100) == b"ready\n"
        child.kill()
        await child.wait()
        os.close(write_end)
        # The pipe ends only when the grandchild, which held it too, is gone.
        assert await trio.to_thread.run_sync(os.read, read_end, 100) == b""
    os.close(read_end)


async def test_what_a_child_says_goes_after_what_its_file_holds(tmp_path: Path) -> None:
    file = tmp_path / "child.log"
    order = attrs.evolve(python("import os; os.write(1, b'out '); os.write(2, b'err ')"), output=str(file))
    with LinuxChildren() as children, trio.fail_after(30):
        for _ in range(2):
            assert await (await children.start(order)).wait() == 0
        assert file.read_bytes() == b"out err out err "
        assert file.stat().st_mode & 0o777 == 0o600
        with pytest.raises(PortFault, match="no-such"):
            await children.start(attrs.evolve(order, output=str(tmp_path / "no-such" / "log")))
