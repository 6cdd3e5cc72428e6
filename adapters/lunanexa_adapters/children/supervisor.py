"""The child's end of the pipe that a supervisor holds open: when it closes, the supervisor is gone."""

import os
from collections.abc import Mapping

import trio

from lunanexa_ports.children import SUPERVISOR_FD
from lunanexa_ports.errors import PortFault


async def wait_supervisor_gone(environment: Mapping[str, str]) -> None:
    """Returns when the supervisor has ended, however it ended; never for a process that has none. Raises
    ``PortFault`` when the variable does not name an open descriptor."""
    text = environment.get(SUPERVISOR_FD)
    if text is None:
        await trio.sleep_forever()
    try:
        descriptor = int(text or "")
        os.set_inheritable(descriptor, False)  # Or an engine would hold it open.
        os.set_blocking(descriptor, False)
        stream = trio.lowlevel.FdStream(descriptor)
    except (ValueError, OSError):
        raise PortFault(f"{SUPERVISOR_FD} does not name an open pipe") from None
    async with stream:
        while await stream.receive_some(64):
            pass
