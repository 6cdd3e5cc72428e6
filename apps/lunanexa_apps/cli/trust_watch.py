"""A rotation of trust as a person watches it: looked at until nobody stands on the old ones any more."""

from collections.abc import Callable, Iterator
from typing import Final

import trio

from lunanexa_apps.cli.asking import entries
from lunanexa_apps.cli.cells import word
from lunanexa_apps.cli.drain_watch import LOOK_S, SILENT_S
from lunanexa_client import AsyncOperator, ConnectionFailed, Document, Unavailable

_STAGES: Final = {
    "spreading": "1 of 2: nodes learn of the new authority and signing key",
    "turning": "2 of 2: the new ones are in use, and nodes take new certificates",
}
_LACKS: Final = {
    "not_heard": "was not heard yet",
    "old_trust": "has not taken the new ones yet",
    "old_certificate": "has a certificate of the old authority yet",
}
LOST: Final = "lost"


def is_stable(trust: Document) -> bool:
    """Whether no rotation is under way."""
    return trust.get("stage") == "stable"


def awaited(trust: Document) -> tuple[str, ...]:
    """The nodes for which it waits, those that nobody hears first."""
    waiting = sorted(entries(trust, "waiting"), key=lambda one: one.get("state") != LOST)
    return tuple(word(one.get("node")) for one in waiting)


def progress(trust: Document) -> Iterator[str]:
    """The step, and a line for each node that it waits for."""
    step = _STAGES.get(str(trust.get("stage")))
    if step is not None:
        yield step
    for one in entries(trust, "waiting"):
        yield f"  {word(one.get('node'))} {lack(one)}"


def lack(one: Document) -> str:
    """What a node has yet to do."""
    told = _LACKS.get(str(one.get("lacks")), word(one.get("lacks")))
    return f"{told}: it is {LOST}, and all wait for it" if one.get("state") == LOST else told


async def watch(
    operator: AsyncOperator, trust: Document, *, timeout_ms: int | None, tell: Callable[[str], None]
) -> Document:
    """Looks until it is over or the time is; each change is told once."""
    told: tuple[str, ...] = ()
    until = trio.current_time() + (float("inf") if timeout_ms is None else timeout_ms / 1_000)
    heard = trio.current_time()
    while True:
        lines = tuple(progress(trust))
        for line in lines:
            if line not in told:
                tell(line)
        told = lines
        if is_stable(trust) or trio.current_time() >= until:
            return trust
        await trio.sleep(min(LOOK_S, max(0.0, until - trio.current_time())))
        try:
            trust = await operator.trust()
            heard = trio.current_time()
        except (ConnectionFailed, Unavailable):
            if trio.current_time() - heard > SILENT_S:
                raise
