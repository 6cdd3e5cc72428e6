"""The snapshot keeper: has the rows replayed beside the running kernel, again and again.

What comes of it is kept, so that the next start reads few rows. And it is the proof, for as long as a controller runs,
that its state is what its journal says: a replay that comes to another state is no snapshot but an alert.
"""

from typing import Final

import structlog
import trio

from lunanexa_apps.controller.digests import digest_of
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_ports.errors import PortError
from lunanexa_ports.replays import Replays

WITHIN_S: Final = 6 * 3_600.0
"""After so long fewer rows will do."""
LOOK_S: Final = 5.0
RETRY_S: Final = 60.0
_log = structlog.get_logger()


async def run_snapshots(
    kernel: Kernel,
    replays: Replays,
    *,
    rows: int,
    within_s: float = WITHIN_S,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Has a snapshot made whenever ``rows`` rows have come since the last one, or one has within ``within_s``; leading
    or not."""
    task_status.started()
    tried, looked_s = 0, trio.current_time()
    while True:
        sequence = kernel.head.sequence
        since = sequence - max(kernel.snapshot_at, tried)
        late = trio.current_time() - looked_s >= within_s
        if not kernel.replayed or since < (1 if late else rows):
            await trio.sleep(LOOK_S)
        elif await _replay(kernel, replays):
            tried, looked_s = sequence, trio.current_time()
        else:
            await trio.sleep(RETRY_S)


async def _replay(kernel: Kernel, replays: Replays) -> bool:
    """Whether the rows could be replayed, to the same state or not."""
    # Both at one instant; the kernel goes on while the copy is looked at.
    sequence, state = kernel.head.sequence, kernel.state.copy()
    digest = await digest_of(state)
    del state
    try:
        same = await replays.snapshot(sequence, digest)
    except PortError as error:
        _log.warning("no_snapshot", sequence=sequence, reason=str(error))
        return False
    if same:
        kernel.snapshot_at = sequence
        _log.info("snapshot_kept", sequence=sequence)
        return True
    kernel.replay_differs = True
    _log.error(
        "replay_differs",
        sequence=sequence,
        digest=digest,
        fix="keep `lunanexa journal export FILE` and report it; a restart makes the state anew from the rows",
    )
    return True
