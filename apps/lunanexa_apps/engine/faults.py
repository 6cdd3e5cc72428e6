"""Faults that an engine commits because it was told to, so that what stands around it can be tried.

A fault counts the calls that it could strike: those to the model routes, to ``/health`` or to ``/v1/models``.
It lets ``after`` of them pass, strikes ``count`` of the next ones (all of them without), and is then over.
"""

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import attrs


class FaultKind(enum.Enum):
    REFUSE = "refuse"
    CLOSE = "close"
    HANG = "hang"
    CUT = "cut"
    ERROR_FRAME = "error-frame"
    NO_DONE = "no-done"
    EXIT = "exit"
    LEAK = "leak"
    UNHEALTHY = "unhealthy"
    WRONG_START = "wrong-start"
    WRONG_MODEL = "wrong-model"
    EXIT_AT_START = "exit-at-start"
    SLOW_STOP = "slow-stop"


class Where(enum.Enum):
    """What a fault strikes."""

    REQUEST = "request"
    HEALTH = "health"
    MODELS = "models"
    PROCESS = "process"


@attrs.frozen(kw_only=True)
class _Rule:
    """``usual`` is the number of a fault that names none; without one the kind takes no number."""

    where: Where
    usual: int | None = None
    least: int = 0
    most: int = 1_000_000


_RULES: Final[Mapping[FaultKind, _Rule]] = {
    FaultKind.REFUSE: _Rule(where=Where.REQUEST, usual=503, least=400, most=599),
    FaultKind.CLOSE: _Rule(where=Where.REQUEST),
    FaultKind.HANG: _Rule(where=Where.REQUEST),
    FaultKind.CUT: _Rule(where=Where.REQUEST, usual=1),
    FaultKind.ERROR_FRAME: _Rule(where=Where.REQUEST, usual=1),
    FaultKind.NO_DONE: _Rule(where=Where.REQUEST),
    FaultKind.EXIT: _Rule(where=Where.REQUEST, usual=0, most=255),
    FaultKind.LEAK: _Rule(where=Where.REQUEST, usual=1, least=1, most=64),
    FaultKind.UNHEALTHY: _Rule(where=Where.HEALTH, usual=503, least=400, most=599),
    FaultKind.WRONG_START: _Rule(where=Where.MODELS),
    FaultKind.WRONG_MODEL: _Rule(where=Where.MODELS),
    FaultKind.EXIT_AT_START: _Rule(where=Where.PROCESS, usual=1, most=255),
    FaultKind.SLOW_STOP: _Rule(where=Where.PROCESS, usual=60_000),
}
assert _RULES.keys() == set(FaultKind)

LEAK_CAP_MIB: Final = 512
"""What all leaks of one process may keep together: a test must not take its machine with it."""
_FORM: Final = re.compile(r"([a-z-]+)(?:=([0-9]{1,7}))?(?:,after=([0-9]{1,7}))?(?:,count=([0-9]{1,7}))?", re.ASCII)

Struck: TypeAlias = Mapping[FaultKind, int]
"""The faults that strike one call, each with its number (0 where the kind takes none)."""


@attrs.frozen(kw_only=True)
class Fault:
    kind: FaultKind
    number: int = 0
    after: int = 0
    count: int | None = None

    @property
    def where(self) -> Where:
        return _RULES[self.kind].where

    def __str__(self) -> str:
        number = "" if _RULES[self.kind].usual is None else f"={self.number}"
        after = f",after={self.after}" if self.after else ""
        return f"{self.kind.value}{number}{after}" + ("" if self.count is None else f",count={self.count}")


def parse_fault(text: str) -> Fault:
    """``KIND[=N][,after=N][,count=N]``. Raises ``ValueError`` with a sentence that says what is wrong."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"a fault is KIND[=N][,after=N][,count=N], not {text[:80]!r}")
    name, number, after, count = match.groups()
    try:
        kind = FaultKind(name)
    except ValueError:
        raise ValueError(f"no fault {name!r}; there are {', '.join(kind.value for kind in FaultKind)}") from None
    rule = _RULES[kind]
    if rule.usual is None and number is not None:
        raise ValueError(f"the fault {name} takes no number")
    if rule.where is Where.PROCESS and (after, count) != (None, None):
        raise ValueError(f"the fault {name} takes neither after nor count")
    fault = Fault(
        kind=kind,
        number=(rule.usual or 0) if number is None else int(number),
        after=int(after or 0),
        count=None if count is None else int(count),
    )
    if rule.usual is not None and not rule.least <= fault.number <= rule.most:
        raise ValueError(f"the number of the fault {name} must be from {rule.least} to {rule.most}")
    return fault


@attrs.define
class _Armed:
    fault: Fault
    met: int = 0
    struck: int = 0

    def strikes(self) -> bool:
        self.met += 1
        count = self.fault.count
        strikes = self.met > self.fault.after and (count is None or self.struck < count)
        self.struck += strikes
        return strikes


class Faults:
    """The faults of one engine, and what they have done so far."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._armed: list[_Armed] = []
        self._hoard: list[bytes] = []
        self.arm(faults)

    def arm(self, faults: Iterable[Fault]) -> None:
        """From now on these and no others, all counting from zero. What has leaked stays."""
        self._armed = [_Armed(fault) for fault in faults]

    def strike(self, where: Where) -> Struck:
        """One call has come there: what strikes it. Of two faults of one kind the earlier one's number counts."""
        struck: dict[FaultKind, int] = {}
        for armed in self._armed:
            if armed.fault.where is where and armed.strikes():
                struck.setdefault(armed.fault.kind, armed.fault.number)
        return struck

    def of_process(self, kind: FaultKind) -> int | None:
        """The number of a fault that strikes the process itself, if it is armed."""
        return next((armed.fault.number for armed in self._armed if armed.fault.kind is kind), None)

    def leak(self, size_mib: int) -> None:
        """Keeps that much memory, really in use, for good; nothing beyond the cap."""
        if self.leaked_mib + size_mib <= LEAK_CAP_MIB:
            self._hoard.append(b"\xff" * (size_mib << 20))

    @property
    def leaked_mib(self) -> int:
        return sum(map(len, self._hoard)) >> 20

    def document(self) -> dict[str, object]:
        rows = [{"fault": str(armed.fault), "met": armed.met, "struck": armed.struck} for armed in self._armed]
        return {"faults": rows, "leaked_mib": self.leaked_mib}
