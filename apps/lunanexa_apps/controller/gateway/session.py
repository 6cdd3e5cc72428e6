"""A gateway's session with the kernel: what the gateway holds lives as long as it is renewed."""

from typing import Final

import structlog
import trio

from lunanexa_core.ids import SessionId
from lunanexa_ports.dispatch import Dispatch
from lunanexa_ports.errors import PortUnavailable

RENEWALS_A_LEASE: Final = 3
_RETRY_S: Final = 0.5


async def run_gateway_session(
    dispatch: Dispatch, session: SessionId, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Opens the session, then renews it for ever. While the kernel is gone it is tried again and again: a
    session that lapsed meanwhile is opened anew by the same call."""
    log = structlog.get_logger("lunanexa.gateway")
    started = lost = False
    while True:
        try:
            lease_ms = await dispatch.open_session(session)
        except PortUnavailable as error:
            if not lost:
                log.warning("session_lost", session=session, problem=str(error))
            lost = True
            await trio.sleep(_RETRY_S)
            continue
        if lost:
            log.info("session_back", session=session)
        lost = False
        if not started:
            task_status.started()
            started = True
        await trio.sleep(lease_ms / 1000 / RENEWALS_A_LEASE)
