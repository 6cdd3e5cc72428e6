"""What the agent that runs was told at its start, noted for whoever looks at the node meanwhile: its options may be
others than those of the enrolment, and at each start."""

from typing import Final

import attrs
import structlog

from lunanexa_apps.codec import CodecError, decode, encode
from lunanexa_apps.node.plan import AgentPlan, Told
from lunanexa_apps.setting_kinds import Address, HostPort, NotOfThisKind
from lunanexa_core.southbound.controllers import controller_url, parse_controller_url
from lunanexa_ports.errors import PortError
from lunanexa_ports.node_store import NodeStore

_FACT: Final = "started"
_log = structlog.get_logger()


@attrs.frozen(kw_only=True)
class Started:
    """One agent's start."""

    holder: str
    """What this agent says of itself at the lock of its data directory. Another one's note is no word of this one."""
    controllers: tuple[str, ...]
    """URLs of their node listeners."""
    data_listen: str | None
    """Where its data listener listens."""


async def note_start(store: NodeStore, holder: str | None, plan: AgentPlan) -> None:
    """Of the agent that is the ``holder``, once it listens. Nothing that serves depends on the note, so that a store
    that can't be written is only told of."""
    started = Started(
        holder=holder or "",
        controllers=tuple(map(controller_url, plan.controllers)),
        data_listen=plan.listen_word,
    )
    try:
        await store.put(_FACT, encode(started))
    except PortError as error:
        _log.warning("start_not_noted", reason=str(error))


async def read_start(store: NodeStore, holder: str | None) -> Started | None:
    """``None``: no agent runs, or the ``holder`` noted nothing: it only begins, is no agent, or is of an older version.
    Raises as the store does."""
    kept = None if holder is None else await store.get(_FACT)
    if kept is None:
        return None
    try:
        started = decode(Started, kept)
    except CodecError:
        return None
    return started if started.holder == holder else None


def as_it_was_told(told: Told, started: Started | None) -> Told:
    """``told``, and what it leaves open as the agent that runs was told it."""
    if started is None:
        return told
    controllers = told.controllers or tuple(
        one for one in map(parse_controller_url, started.controllers) if one is not None
    )
    if told.data_listen is not None or told.no_data_listener:
        return attrs.evolve(told, controllers=controllers)
    listen = _address(started.data_listen)
    return attrs.evolve(told, controllers=controllers, data_listen=listen, no_data_listener=listen is None)


def _address(text: str | None) -> HostPort | None:
    try:
        return None if text is None else Address().from_text(text, "")
    except NotOfThisKind:
        return None
