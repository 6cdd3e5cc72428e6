"""Whether an address is free, and who has it."""

import os

import trio

from lunanexa_apps.setting_kinds import HostPort
from lunanexa_apps.up.port_check import CanNotListen, check_listen, holder_of


async def test_a_free_port_is_taken_as_it_is_and_0_is_chosen() -> None:
    chosen = await check_listen(HostPort("127.0.0.1", 0))
    assert isinstance(chosen, HostPort)
    assert chosen.port > 0
    assert await check_listen(chosen) == chosen


async def test_a_busy_port_names_its_holder_and_the_way_out() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        port = listener.socket.getsockname()[1]
        refusal = await check_listen(HostPort("127.0.0.1", port))
        assert isinstance(refusal, CanNotListen)
        assert f"127.0.0.1:{port} is in use: process {os.getpid()} (" in refusal.message
        assert "--listen 127.0.0.1:" in refusal.hint
    assert holder_of(port) is None


async def test_an_address_of_another_machine() -> None:
    refusal = await check_listen(HostPort("192.0.2.1", 8400))
    assert isinstance(refusal, CanNotListen)
    assert "not an address of this machine" in refusal.message
