"""What the store tells: chains, time, fences, who writes, and that what was committed is what is known."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

import attrs

from lunanexa_apps.controller.replay import Replay
from lunanexa_apps.controller.rows import PRUNED_ACTION, pruning_of
from lunanexa_core.journal import Head, Row
from lunanexa_core.state import State
from lunanexa_core.state_digest import state_digest
from lunanexa_core.time import SLEW_PER_MILLE
from lunanexa_ports.errors import PortFault
from lunanexa_simulation.sight import Paced, Sight

_ROUNDING_MS: Final = 2
_TABLES: Final = [field.name for field in attrs.fields(State) if isinstance(getattr(State(), field.name), dict)]
_LIKENED_MAX: Final = 64


def chains_verify(sight: Sight) -> str | None:
    """Every committed row stands in its chain and in time, and the kernel's head is where the rows end."""
    if sight.shadow.fault is not None:
        return sight.shadow.fault
    kernel = sight.kernel
    if kernel is not None and _place(sight.shadow.replay.head) != _place(kernel.head):
        return f"the rows end at {sight.shadow.replay.head}, the kernel stands at {kernel.head}"
    return None


def _place(head: Head) -> tuple[object, ...]:
    """Without the epoch, which is claimed before there is a row of it."""
    return head.sequence, head.journal, head.ledger


def one_writer(sight: Sight) -> str | None:
    """Two controllers never think at one instant that they may write, whatever their clocks say."""
    return None if len(sight.writers) < 2 else f"{' and '.join(sight.writers)} may write"


def time_is_steady(sight: Sight) -> str | None:
    """The time that goes into a leader's rows leans towards its wall clock by a tenth at most, however that is set. One
    who leads again goes on where the rows of others end."""
    if sight.kernel is None:
        return None
    now, reign = sight.kernel.now(), (sight.kernel, sight.kernel.epoch)
    if sight.paced is None or sight.paced.reign != reign:
        # From the newest row on it may have leant the other way.
        leant_ms = (now.wall_ms - sight.shadow.wall_ms) * SLEW_PER_MILLE // (1_000 - SLEW_PER_MILLE)
        sight.paced = Paced(reign=reign, began=now, leant_ms=leant_ms)
    began = sight.paced.began
    passed_ms, told_ms = now.mono_ms - began.mono_ms, now.wall_ms - began.wall_ms
    lean_ms = passed_ms * SLEW_PER_MILLE // 1_000 + 2 * sight.paced.leant_ms + _ROUNDING_MS
    if abs(told_ms - passed_ms) > lean_ms:
        return f"{told_ms} ms are told while {passed_ms} ms passed"
    return None


def fences_never_fall(sight: Sight) -> str | None:
    """(epoch, generation) never falls, on controller or node, whatever dies when."""
    now = dict(sight.fences())
    if sight.kernel is not None:
        now["controller"] = (sight.kernel.epoch, 0)
        for node_id, node in sight.kernel.state.nodes.items():
            now[f"controller for {node_id}"] = (sight.kernel.state.epoch, node.generation)
    for machine, fence in now.items():
        highest = sight.highest.get(machine, (0, 0))
        if fence[0] < highest[0] or fence[1] < highest[1]:
            return f"{machine} fell from {highest} to {fence}"
        sight.highest[machine] = fence
    return None


def shadow_equals_live(sight: Sight) -> str | None:
    """A state fed with committed events alone is the live one."""
    if sight.kernel is None:
        return None
    shadow, live = sight.shadow.replay.state, sight.kernel.state
    difference = _difference(shadow, live)
    known = sight.likened_state is live
    if difference is None and not (known and sight.likened == sight.shadow.sequence):
        # What is equal and frozen may as well be the same: the next comparison is a look at each and no more. Of a long
        # table the newest are enough, but for one that was made anew, by a replay.
        sight.likened, sight.likened_state = sight.shadow.sequence, live
        for table in _TABLES:
            _liken(getattr(shadow, table), getattr(live, table), _LIKENED_MAX if known else None)
    return difference


def _liken(shadow: dict[object, object], live: Mapping[object, object], newest: int | None) -> None:
    for key in islice(reversed(live), newest):
        shadow[key] = live[key]


def snapshots_agree(sight: Sight) -> str | None:
    """No replay beside the kernel comes to another state than it has."""
    differs = sight.kernel is not None and sight.kernel.replay_differs
    return "the replay for a snapshot came to another state" if differs else None


def replay_equals_live(rows: Sequence[Row], live: State) -> str | None:
    """A full replay from nothing gives the live state. Asked at crashes and at the end."""
    prunings = (pruning_of(row) for row in reversed(rows) if row.action == PRUNED_ACTION)
    replayed = Replay(pruning=next(prunings, None))
    try:
        for row in rows:
            replayed.feed(row)
    except PortFault as error:
        return str(error)
    difference = _difference(replayed.state, live)
    if difference is None and state_digest(replayed.state) != state_digest(live):
        return "replayed and live are equal and have different digests"
    return difference


def _difference(replayed: State, live: State) -> str | None:
    if replayed == live:
        return None
    tables = [field.name for field in attrs.fields(State) if getattr(replayed, field.name) != getattr(live, field.name)]
    return f"replayed and live differ in {', '.join(tables)}"
