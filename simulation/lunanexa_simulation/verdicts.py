"""How a run may end, and which of several errors decides."""

import enum
import traceback
from collections.abc import Iterator
from typing import Final


class Verdict(enum.Enum):
    """How a run ended. The value is the exit code of ``lunanexa-sim``."""

    HELD = 0
    SAFETY_BROKEN = 1
    LIVENESS_BROKEN = 2
    CRASHED = 3
    NOT_DETERMINISTIC = 4


class SafetyBroken(AssertionError):
    """Something happened that must never happen. The message begins with the name of what was broken."""


class LivenessBroken(AssertionError):
    """Something that must happen did not: within its time, within the horizon, or ever (deadlock)."""


class StoppedHere(Exception):
    """No fault: the run was to stop at this instant, and nothing was broken until then."""


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What decides the verdict. A broken invariant says more than the crashes that came of it."""
    leaves = list(_leaves(group))
    if any(not isinstance(leaf, Exception) for leaf in leaves):
        raise group  # Ctrl-C and the like are not the world's doing.
    # What tearing down broke after a stop is nobody's news.
    stopped = next((leaf for leaf in leaves if isinstance(leaf, StoppedHere)), None)
    return stopped or min(leaves, key=lambda leaf: _RANK.index(verdict_of(leaf)))


_RANK: Final = (Verdict.SAFETY_BROKEN, Verdict.CRASHED, Verdict.LIVENESS_BROKEN)


def verdict_of(broken: BaseException | None) -> Verdict:
    """How a run ended that ended by ``broken``."""
    match broken:
        case None | StoppedHere():
            return Verdict.HELD
        case SafetyBroken():
            return Verdict.SAFETY_BROKEN
        case LivenessBroken():
            return Verdict.LIVENESS_BROKEN
        case _:
            return Verdict.CRASHED


def problem_of(broken: BaseException) -> str:
    """One line."""
    told = str(broken).partition("\n")[0]
    return told if isinstance(broken, SafetyBroken | LivenessBroken) else f"{type(broken).__name__}: {told}"


def detail_of(broken: BaseException) -> str:
    """For whoever mends it: the tree of tasks, or the traceback."""
    if isinstance(broken, LivenessBroken):
        return str(broken).partition("\n")[2]
    return "".join(traceback.format_exception(broken))
