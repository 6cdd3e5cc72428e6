"""Every fault that may be asked for, and how asking is read: an error names the field, and what it may be."""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from lunanexa_simulation.mishaps import KINDS, Hands, Kind
from lunanexa_simulation.mishaps.plan import count_of
from lunanexa_simulation.serving.answers import Problem
from lunanexa_simulation.serving.case import Case, FaultKind, Parameter, Value
from lunanexa_simulation.serving.switches import SWITCHES
from lunanexa_simulation.world_plan import WorldPlan

FOR_MS_MAX: Final = 3_600_000
_NODES: Final = frozenset((Hands.NODE, Hands.MEMORY, Hands.LINK, Hands.DATA_LINK, Hands.NODE_CLOCK))
_CONTROLLERS: Final = frozenset((Hands.CONTROLLER, Hands.CONTROLLER_CLOCK))
_FOR_MS: Final = Parameter(name="for_ms", about="heals by itself after so long", default="", least=1, most=FOR_MS_MAX)


def _mishap(kind: Kind) -> FaultKind:
    async def befall(case: Case) -> None:
        await kind.befall(case.field, case.number, case.draw)

    about = " ".join((kind.befall.__doc__ or "").split())
    return FaultKind(
        name=kind.name.replace(" ", "-"),
        hands=kind.hands,
        about=about or f"{kind.name}.",
        befall=befall,
        by_itself=True,
    )


FAULTS: Final[Mapping[str, FaultKind]] = {
    kind.name: kind for kind in (*SWITCHES, *(_mishap(kind) for kind in KINDS.values()))
}
"""By name: those that last until they are told to heal, and what a swarm lets happen, which heals by itself."""


@attrs.frozen(kw_only=True)
class Wish:
    """A fault that is asked for."""

    kind: FaultKind
    number: int
    """Of what it shall befall, from 0."""
    values: Mapping[str, Value]
    for_ms: int | None = None


def things(kind: FaultKind) -> str:
    """What there are several of that it may befall."""
    if kind.hands in _NODES:
        return "node"
    return "controller" if kind.hands in _CONTROLLERS else kind.hands.value


def read_wish(document: object, world: WorldPlan) -> Wish | Problem:
    """What a body asks for, in this world."""
    if not isinstance(document, dict):
        return _bad("", 'the body is a JSON object such as {"kind": "agent-down", "target": 1}')
    fields: dict[str, Any] = dict(document)
    name = fields.pop("kind", None)
    kind = FAULTS.get(name) if isinstance(name, str) else None
    if kind is None:
        return _bad("kind", f"one of {', '.join(FAULTS)}")
    number = _number(fields.pop("target", None), kind, world)
    if isinstance(number, Problem):
        return number
    return _with_values(kind, number, fields)


def _number(target: object, kind: FaultKind, world: WorldPlan) -> int | Problem:
    most = count_of(kind.hands, world)
    if target is None and most == 1:
        return 0
    if not isinstance(target, int) or isinstance(target, bool) or not 1 <= target <= most:
        return _bad("target", f"the number of a {things(kind)}, from 1 to {most}")
    return target - 1


def _with_values(kind: FaultKind, number: int, fields: Mapping[str, object]) -> Wish | Problem:
    known = {one.name: one for one in (*kind.parameters, *(() if kind.by_itself else (_FOR_MS,)))}
    values: dict[str, Value] = {one.name: one.default for one in kind.parameters}
    for name, value in fields.items():
        parameter = known.get(name)
        if parameter is None:
            return _bad(name, f"{kind.name} takes {', '.join(('kind', 'target', *known))}", unknown=True)
        if not parameter.takes(value):
            return _bad(name, parameter.told)
        assert isinstance(value, int | str)
        values[name] = value
    for_ms = values.pop(_FOR_MS.name, None)
    return Wish(kind=kind, number=number, values=values, for_ms=None if for_ms is None else int(for_ms))


def _bad(field: str, wanted: str, *, unknown: bool = False) -> Problem:
    message = f"There is no field {field[:60]!r} here: {wanted}." if unknown else f"{field or 'Wanted'}: {wanted}."
    return Problem(status=400, code="invalid_request", message=message, param=field or None)
