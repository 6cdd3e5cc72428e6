"""What an agent finds on its machine."""

import os
import socket
from pathlib import Path

import pytest

from lunanexa_adapters.files.lock import FileLock, hold_lock, holder_of
from lunanexa_adapters.machine.addresses import address_towards, why_not_listen
from lunanexa_adapters.machine.devices import find_devices
from lunanexa_adapters.sqlite.node_store import open_sqlite_node_store, read_sqlite_node_store
from lunanexa_ports.errors import PortUnavailable


def test_the_own_address_towards_loopback_is_on_loopback() -> None:
    assert address_towards("127.0.0.1", 9) == "127.0.0.1"


def test_there_is_no_address_towards_what_does_not_exist() -> None:
    assert address_towards("no-such-host.invalid", 9) is None


def test_a_port_that_is_taken_can_not_be_had() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        assert why_not_listen("127.0.0.1", port) == "Address already in use"
    assert why_not_listen("127.0.0.1", port) is None
    assert why_not_listen("203.0.113.9", port) == "Cannot assign requested address"


def test_without_nvml_it_says_so() -> None:
    assert find_devices("libno-such-thing.so.1") == (
        "libno-such-thing.so.1 is not here: no NVIDIA driver is installed, or none for this container"
    )


def test_who_holds_a_lock_is_seen_without_touching_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder_of(path) is None
    held = hold_lock(path, "an agent")
    assert isinstance(held, FileLock)
    assert holder_of(path) == "an agent"
    held.release()
    assert holder_of(path) is None


async def test_a_node_store_is_read_beside_its_agent_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "node.sqlite3"
    async with open_sqlite_node_store(path) as agent:
        await agent.put("one", b"1")
        async with read_sqlite_node_store(path, live=True) as reader:
            assert await reader.get("one") == b"1"
            await agent.put("one", b"2")
            assert await reader.get("one") == b"2"
            with pytest.raises(PortUnavailable):
                await reader.put("one", b"3")
    async with read_sqlite_node_store(path, live=False) as reader:
        assert await reader.get("one") == b"2"
    assert os.listdir(tmp_path) == [path.name], "SQLite's own files are not made either"
