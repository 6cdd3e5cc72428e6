"""What is read of /proc: tables and stat lines, with the names that programs give themselves."""

import os
import socket

from hypothesis import given
from hypothesis import strategies as st

from lunanexa_adapters.processes.identity import ProcessStat, boot_id, parse_stat, read_stat
from lunanexa_adapters.processes.sockets import listening_inodes, owner_of_listener

NAMES = st.binary(min_size=0, max_size=15).filter(lambda name: b"\0" not in name)
NUMBERS = st.integers(0, 2**63 - 1)


def stat_line(pid: int, name: bytes, state: str, group: int, session: int, ticks: int) -> bytes:
    fields = ["1", str(group), str(session), *["0"] * 15, str(ticks), *["7"] * 30]
    return b"%d (%s) %s %s\n" % (pid, name, state.encode(), " ".join(fields).encode())


@given(pid=NUMBERS, name=NAMES, group=NUMBERS, session=NUMBERS, ticks=NUMBERS)
def test_any_name_is_read_past(pid: int, name: bytes, group: int, session: int, ticks: int) -> None:
    stat = parse_stat(stat_line(pid, name, "S", group, session, ticks))
    assert stat == ProcessStat(
        pid=pid, name=name.decode(errors="replace"), state="S", group=group, session=session, start_ticks=ticks
    )


def test_a_name_may_play_a_stat_line_itself() -> None:
    stat = parse_stat(stat_line(5, b"x) Z 1 2 (3", "R", 5, 5, 99))
    assert stat is not None
    assert (stat.state, stat.group, stat.start_ticks, stat.ended) == ("R", 5, 99, False)


@given(st.binary())
def test_what_is_no_stat_line_is_none(data: bytes) -> None:
    stat = parse_stat(data)
    assert stat is None or isinstance(stat.start_ticks, int)


def test_this_process_is_read_rightly() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    assert (stat.pid, stat.group, stat.session) == (os.getpid(), os.getpgid(0), os.getsid(0))
    assert not stat.ended
    assert read_stat(0) is None
    assert len(boot_id()) == 36


TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1001 1 0 100 0 0 10 0
   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1002 1 0 100 0 0 10 0
   2: 0200007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1003 1 0 100 0 0 10 0
   3: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 1004 1 0 100 0 0 10 0
   4: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1005 1 0 100 0 0 10 0
   5: broken
"""


def test_only_listeners_that_loopback_reaches_count() -> None:
    assert listening_inodes(TABLE, 8080) == {"1001", "1002"}
    assert listening_inodes(TABLE, 8081) == {"1005"}
    assert listening_inodes("", 8080) == set()


def test_the_owner_of_a_listener_on_ipv6_is_found_too() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        owner = owner_of_listener(listener.getsockname()[1])
    assert owner is not None
    assert owner.pid == os.getpid()
