"""State rebuilt from rows, its digest, and whether it is the live one."""

from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

import attrs

from lunanexa_apps.cli.journal_source import Source, by_pruning, check_end, rows_until
from lunanexa_apps.controller.replay import Replay
from lunanexa_apps.controller.rows import Pruning
from lunanexa_core.contract.journal import StateDocument
from lunanexa_core.events import UnknownEvent
from lunanexa_core.state_digest import state_digest, table_sizes
from lunanexa_ports.errors import PortFault


@attrs.frozen(kw_only=True)
class Replayed:
    """``matches``: whether the live state has the same digest; ``None``: it was not compared, and ``why_not`` says
    why. With a ``problem`` the rest tells of the rows before it."""

    sequence: int
    digest: str
    tables: Mapping[str, int]
    matches: bool | None = None
    why_not: str | None = None
    problem: str | None = None

    @property
    def ok(self) -> bool:
        return self.problem is None and self.matches is not False

    def document(self) -> dict[str, Any]:
        return {"ok": self.ok, **attrs.asdict(self)}


async def replay_source(source: Source, until: int | None, version: str) -> Replayed:
    """Rebuilds the state after row ``until``, by default after the last one. ``version`` is this program's. Raises
    :class:`~lunanexa_apps.cli.journal_source.TooEarly`."""
    live = await source.state()
    last = (await source.head()).sequence if live is None else live.sequence
    end = last if until is None else until
    return await by_pruning(
        source, partial(_replay, source, live, end, version), lambda replayed: replayed.problem is not None
    )


async def _replay(
    source: Source, live: StateDocument | None, end: int, version: str, pruning: Pruning | None
) -> Replayed:
    check_end(pruning, end)
    replay, problem = Replay(pruning=pruning), None
    try:
        async with aclosing(rows_until(source, end)) as rows:
            async for row in rows:
                replay.feed(row)
    except (PortFault, UnknownEvent) as error:
        problem = str(error)
    sequence = replay.head.sequence
    if problem is None and sequence < end:
        problem = f"the rows end at {sequence}, before {end}"
    digest = state_digest(replay.state)
    why_not = _why_not(live, sequence, version)
    return Replayed(
        sequence=sequence,
        digest=digest,
        tables=table_sizes(replay.state),
        matches=digest == live.digest if live is not None and why_not is None else None,
        why_not=why_not,
        problem=problem,
    )


def _why_not(live: StateDocument | None, sequence: int, version: str) -> str | None:
    if live is None:
        return "no controller runs"
    if sequence != live.sequence:
        return f"the live state is that after row {live.sequence}"
    if version != live.version:
        return f"the controller is version {live.version}, this program is {version}"
    return None
