"""The Linux process host where a conformance suite can't look: launcher, records, environment, logs."""

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
import trio

from lunanexa_adapters.processes.identity import all_stats, boot_id
from lunanexa_adapters.processes.intents import Intents, locked
from lunanexa_adapters.processes.launcher import PENDING
from lunanexa_adapters.processes.processes import LinuxProcesses
from lunanexa_core.ids import StartId
from lunanexa_ports.processes import LaunchOrder, ManagedProcess, ProcessExit, SpawnFailed

pytestmark = pytest.mark.thorough

START = StartId("start_1")
SHOW = """
import os, signal, json
print(json.dumps({
    "environment": dict(os.environ), "fds": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "group": os.getpgid(0) == os.getpid() == os.getsid(0), "directory": os.getcwd(),
    "ignored": [line.split()[1] for line in open("/proc/self/status") if line.startswith(("SigIgn", "SigBlk"))],
    "stdin": os.read(0, 1).decode(),
}))
"""
LIBC_OWN = 0b11 << 31
"""Signals 32 and 33, which glibc keeps to itself: no program can change what it inherited of them."""
PYTHON = (sys.executable, "-I", "-S", "-c")


class Host:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def open(self, log_cap_bytes: int = 1 << 20) -> LinuxProcesses:
        return LinuxProcesses(
            intents=self.directory / "intents", logs=self.directory / "logs", log_cap_bytes=log_cap_bytes
        )

    def order(self, *argv: str, start: StartId = START) -> LaunchOrder:
        return LaunchOrder(
            start=start,
            argv=argv,
            environment={"ONLY": "this"},
            working_directory=str(self.directory),
            log_name="as_1.log",
        )

    def record(self) -> Path:
        return self.directory / "intents" / f"{START}.json"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def read(path: str) -> bytes:
    return Path(path).read_bytes()


async def end(process: ManagedProcess) -> ProcessExit:
    process.kill()
    with trio.fail_after(30):
        await process.wait_group_gone()
    return await process.wait()


async def test_nothing_of_the_agent_goes_on_into_the_engine(host: Host) -> None:
    leaked, other = os.pipe()
    os.set_inheritable(leaked, True)
    processes = host.open()
    try:
        process = await processes.start(host.order(*PYTHON, SHOW))
        with trio.fail_after(30):
            assert await process.wait() == ProcessExit(code=0)
    finally:
        os.close(leaked)
        os.close(other)
    seen = json.loads(host.directory.joinpath("logs", "as_1.log").read_text())
    # The engine is a Python in the C locale here, which adds LC_CTYPE to its own environment.
    seen["environment"].pop("LC_CTYPE", None)
    assert seen["environment"] == {"ONLY": "this", "LUNANEXA_START_ID": START}
    assert seen["fds"] == [0, 1, 2]
    assert seen["group"]
    assert seen["directory"] == str(host.directory)
    # A Python ignores SIGPIPE (13) and SIGXFSZ (25) itself: nothing else, and nothing blocked.
    assert [int(mask, 16) & ~LIBC_OWN for mask in seen["ignored"]] == [0, (1 << 12) | (1 << 24)]
    assert seen["stdin"] == ""


async def test_the_engine_has_exactly_the_environment_of_the_order(host: Host) -> None:
    processes = host.open()
    process = await processes.start(host.order("/usr/bin/env"))
    await process.wait()
    assert set(processes.last_lines("as_1.log", 10)) == {"ONLY=this", f"LUNANEXA_START_ID={START}"}


async def test_a_broken_pipe_ends_an_engine_as_it_would_anywhere(host: Host) -> None:
    """SIGPIPE is not left ignored by the launcher."""
    processes = host.open()
    script = "grep SigIgn /proc/self/status"
    process = await processes.start(host.order("/bin/sh", "-c", script))
    await process.wait()
    (line,) = processes.last_lines("as_1.log", 1)
    assert int(line.removeprefix("SigIgn:"), 16) & ~LIBC_OWN == 0


async def test_the_record_is_the_identity_of_the_engine(host: Host) -> None:
    processes = host.open()
    process = await processes.start(host.order("/bin/sleep", "1000"))
    record = json.loads(host.record().read_text())
    command = read(f"/proc/{process.identity.pid}/cmdline")
    resident_mib = process.resident_mib()
    assert await end(process) == ProcessExit(signal=9)
    assert record == {"start": START} | attrs.asdict(process.identity)
    assert command == b"/bin/sleep\x001000\x00"
    assert resident_mib is not None
    assert 0 <= resident_mib < 64


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("/nowhere/engine",), "No such file or directory: /nowhere/engine"),
        (("/dev/null",), "Permission denied: /dev/null"),
        (("/bin/sh\0",), "null"),
    ],
)
async def test_a_program_that_cannot_run_says_why(host: Host, argv: tuple[str, ...], reason: str) -> None:
    processes = host.open()
    with pytest.raises(SpawnFailed, match=reason):
        await processes.start(host.order(*argv))
    assert list(processes.recorded()) == []


async def test_a_missing_working_directory_says_why(host: Host) -> None:
    processes = host.open()
    order = attrs.evolve(host.order("/bin/true"), working_directory="/nowhere")
    with pytest.raises(SpawnFailed, match="No such file or directory: /nowhere"):
        await processes.start(order)


async def test_an_agent_that_died_before_the_record_revokes_a_launcher_that_comes_late(host: Host) -> None:
    """The record's lock stands for a launcher that is slow; the agent died right after its fork."""
    processes = host.open()
    # The agent's part of a start, up to its death: the intent is there, the launcher waits for its turn.
    assert Intents(host.directory / "intents").create(START)
    answers: list[ManagedProcess | None] = []
    asking = threading.Thread(target=lambda: answers.append(host.open().adopt(START)))
    with locked(host.record()):
        launched = _spawn_launcher(host)
        await _wait_until_blocked_on_lock(launched)
        # The next agent asks while the launcher waits; whoever gets the lock first, they agree.
        asking.start()
    await trio.to_thread.run_sync(asking.join)
    if answers == [None]:
        with trio.fail_after(30):
            assert await trio.to_thread.run_sync(os.waitpid, launched, 0) == (launched, 127 << 8)
    else:
        found = answers[0]
        assert found is not None
        assert found.identity.pid == launched
        await end(found)
    assert processes.adopt(START) is None


async def test_a_revoked_start_never_becomes_an_engine(host: Host) -> None:
    assert Intents(host.directory / "intents").create(START)
    assert host.open().adopt(START) is None
    pid = _spawn_launcher(host)
    with trio.fail_after(30):
        assert await trio.to_thread.run_sync(os.waitpid, pid, 0) == (pid, 127 << 8)
    assert host.open().adopt(START) is None
    assert list(host.open().recorded()) == []


def _spawn_launcher(host: Host) -> int:
    from lunanexa_adapters.processes import launcher

    read_end, write_end = os.pipe()
    arguments = [str(host.record()), START, "/", "no", "/bin/sleep", "1000"]
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", launcher.__file__, *arguments],
            {},
            file_actions=[(os.POSIX_SPAWN_DUP2, write_end, 3)],
        )
    finally:
        os.close(read_end)
        os.close(write_end)


async def _wait_until_blocked_on_lock(pid: int) -> None:
    with trio.fail_after(30):
        while b"-> FLOCK  ADVISORY  WRITE %d " % pid not in read("/proc/locks"):
            await trio.sleep(0.005)


async def test_a_start_that_was_cancelled_is_found_or_revoked_but_never_lost(host: Host) -> None:
    processes = host.open()
    with trio.CancelScope() as scope:
        scope.cancel()
        await processes.start(host.order("/bin/sleep", "1000"))
    found = processes.adopt(START)
    if found is None:
        assert list(processes.recorded()) == []
    else:
        await end(found)
    processes.forget(START)


async def test_a_launcher_that_was_given_up_is_ended_and_reaped(host: Host) -> None:
    processes = host.open()
    with trio.fail_after(30):
        launched = await _give_up_before_the_record(processes, host)
        assert processes.adopt(START) is None
        processes.forget(START)
        while any(stat.pid == launched for stat in all_stats()):
            assert list(processes.recorded()) == []
            await trio.sleep(0.005)


async def _give_up_before_the_record(processes: LinuxProcesses, host: Host) -> int:
    """The launcher of a start whose agent waits no more; it takes as long as it likes."""
    while True:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(processes.start, host.order("/bin/sleep", "1000"))
            while not host.record().exists():
                await trio.lowlevel.checkpoint()
            with locked(host.record()):
                nursery.cancel_scope.cancel()
                if host.record().read_bytes() == PENDING:
                    launched = _launcher_of(host)
                    os.kill(launched, signal.SIGSTOP)
                    return launched
        faster = processes.adopt(START)
        assert faster is not None
        await end(faster)
        processes.forget(START)


def _launcher_of(host: Host) -> int:
    for stat in all_stats():
        with suppress(OSError):
            if str(host.record()).encode() in read(f"/proc/{stat.pid}/cmdline").split(b"\0"):
                return stat.pid
    raise AssertionError("no launcher runs")


def test_a_torn_record_is_a_start_that_never_was(host: Host) -> None:
    processes = host.open()
    for content in (
        b'{"boot":"x","pi',
        b"",
        PENDING[:5],
        b"[]",
        b'{"boot":1,"pid":1,"start":"start_1","start_ticks":1}',
    ):
        host.record().write_bytes(content)
        assert processes.adopt(START) is None
        assert list(processes.recorded()) == [START]


async def test_a_pid_that_belongs_to_a_stranger_is_left_alone(host: Host) -> None:
    """Same pid, another start time: the record is of an earlier process."""
    stranger = await trio.lowlevel.open_process(["/bin/sleep", "1000"], start_new_session=True)
    processes = host.open()
    identity = {"boot": boot_id(), "pid": stranger.pid}
    host.record().write_text(json.dumps(identity | {"start": START, "start_ticks": 1}))
    assert processes.adopt(START) is None
    assert stranger.poll() is None
    stranger.kill()
    await stranger.wait()


async def test_two_agents_on_one_machine_touch_only_their_own(tmp_path: Path) -> None:
    """Even where both call a start by the same name."""
    here, there = Host(tmp_path / "here"), Host(tmp_path / "there")
    for one in (here, there):
        one.directory.mkdir()
    ours = await here.open().start(here.order("/bin/sleep", "1000"))
    theirs = await there.open().start(there.order("/bin/sleep", "1000"))
    assert ours.identity != theirs.identity
    swept = here.open()
    assert list(swept.recorded()) == [START]
    found = swept.adopt(START)
    assert found is not None
    assert found.identity == ours.identity
    await end(found)
    swept.forget(START)
    assert not swept.recorded()
    assert [stat.pid for stat in all_stats() if stat.pid == theirs.identity.pid and not stat.ended]
    left = there.open().adopt(START)
    assert left is not None
    assert left.identity == theirs.identity
    await end(left)


async def test_what_left_the_engines_session_is_not_the_engine(host: Host) -> None:
    """A wrapper whose child goes its own ways: the child holds the port, and proves nothing by that."""
    processes = host.open()
    port = processes.free_port()
    program = f"import signal, socket; s = socket.create_server(('127.0.0.1', {port})); print('ready', flush=True)"
    script = '(setsid "$@" &)'
    wrapper = await processes.start(
        host.order("/bin/sh", "-c", script, "sh", *PYTHON, f"{program}; signal.pause()", start=START)
    )
    with trio.fail_after(30):
        await wrapper.wait_group_gone()
        while processes.last_lines("as_1.log", 1) != ("ready",):
            await trio.sleep(0.005)
    orphan = processes.owner_of_listener(port)
    assert orphan is not None
    try:
        assert orphan.pid != wrapper.identity.pid
        assert host.open().adopt(START) is None
        successor = StartId("start_2")
        engine = await processes.start(host.order("/bin/sleep", "1000", start=successor))
        assert processes.owner_of_listener(port) == orphan != engine.identity
        await end(engine)
    finally:
        os.kill(orphan.pid, signal.SIGKILL)


async def test_a_record_of_another_boot_proves_nothing(host: Host) -> None:
    processes = host.open()
    process = await processes.start(host.order("/bin/sleep", "1000"))
    record = json.loads(host.record().read_text())
    host.record().write_text(json.dumps(record | {"boot": "another"}))
    assert host.open().adopt(START) is None
    await end(process)


async def test_children_in_groups_of_their_own_end_with_the_engine(host: Host) -> None:
    """A member that left the process group but not the session is found and killed."""
    processes = host.open()
    script = "set -m; sleep 1000 & sleep 1000 & echo ready; wait"
    process = await processes.start(host.order("/bin/sh", "-c", script))
    with trio.fail_after(30):
        while processes.last_lines("as_1.log", 1) != ("ready",):
            await trio.sleep(0.005)
    assert await end(process) == ProcessExit(signal=9)
    assert not [stat for stat in all_stats() if stat.session == process.identity.pid and not stat.ended]


async def test_terminate_reaches_the_whole_group(host: Host) -> None:
    processes = host.open()
    process = await processes.start(host.order("/bin/sh", "-c", "sleep 1000 & echo ready; wait"))
    with trio.fail_after(30):
        while processes.last_lines("as_1.log", 1) != ("ready",):
            await trio.sleep(0.005)
        process.terminate()
        await process.wait_group_gone()
    assert await process.wait() == ProcessExit(signal=signal.SIGTERM)


async def test_a_long_log_is_shortened_and_goes_on(host: Host) -> None:
    processes = host.open(log_cap_bytes=4_000)
    script = "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done; read wait < $0; echo after; sleep 1000"
    fifo = host.directory / "fifo"
    os.mkfifo(fifo)
    process = await processes.start(host.order("/bin/sh", "-c", script, str(fifo)))
    with trio.fail_after(30):
        while processes.last_lines("as_1.log", 1) != ("line 499",):
            await trio.sleep(0.005)
        processes.logs.shorten()
        assert processes.last_lines("as_1.log", 5) == ()
        log = host.directory / "logs" / "as_1.log"
        kept = log.with_name("as_1.log.1").read_bytes()
        assert len(kept) == 1_000
        assert kept.endswith(b"line 499\n")
        await trio.to_thread.run_sync(fifo.write_text, "go\n")
        while processes.last_lines("as_1.log", 1) != ("after",):
            await trio.sleep(0.005)
        # No hole where the old text was: the descriptor appends.
        assert log.read_bytes() == b"after\n"
    await end(process)


async def test_last_lines_are_bounded_and_harmless(host: Host) -> None:
    processes = host.open()
    log = host.directory / "logs" / "x.log"
    log.write_bytes(b"old\n" * 50_000 + b"\x1b[31mred\x07\n\n" + b"y" * 10_000 + b"\nbad \xff utf-8\n")
    lines = processes.last_lines("x.log", 3)
    assert lines == (" [31mred ", "y" * 400, "bad \ufffd utf-8")
