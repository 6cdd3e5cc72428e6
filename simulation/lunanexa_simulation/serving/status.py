"""What the console shows: documents of the world as it stands. Reading them changes nothing."""

from collections.abc import Mapping
from typing import Final

import attrs

from lunanexa_simulation.picture import standing
from lunanexa_simulation.serving.board import Fault, FaultBoard
from lunanexa_simulation.serving.case import FaultKind, Parameter
from lunanexa_simulation.serving.kinds import things
from lunanexa_simulation.serving.watch import Watch
from lunanexa_simulation.trace import virtual_ms
from lunanexa_simulation.world import MODEL_ALIAS, World

SCHEMA: Final = "lunanexa.simulation.status.v1"


@attrs.frozen(kw_only=True)
class Access:
    """How one gets in. The secrets are drawn from the seed, so that they are none."""

    base_url: str
    api_key: str
    operator_token: str
    model: str = MODEL_ALIAS


@attrs.frozen(kw_only=True)
class NodeStatus:
    """One machine. ``liveness``: what the leader thinks of it; ``None``: nobody leads, or does not know it."""

    number: int
    node: str
    agent: bool
    liveness: str | None
    engines: tuple[str, ...]
    """The starts that live."""
    lease_ms: int | None


@attrs.frozen(kw_only=True)
class ControllerStatus:
    """One controller."""

    number: int
    controller: str
    standing: str


@attrs.frozen(kw_only=True)
class ReplicaStatus:
    """One replica as the leader sees it."""

    assignment: str
    node: str
    state: str | None


@attrs.frozen(kw_only=True)
class InvariantStatus:
    """One invariant, and how often it was asked; ``broken``: how."""

    name: str
    times_asked: int
    broken: str | None


@attrs.frozen(kw_only=True)
class FaultStatus:
    """One fault, in force or over."""

    id: int
    kind: str
    befalls: str
    parameters: Mapping[str, int | str]
    heals: str
    began_ms: int
    ended_ms: int | None
    problem: str | None


@attrs.frozen(kw_only=True)
class ServingStatus:
    """The whole."""

    schema: str = SCHEMA
    seed: int
    now_ms: int
    """Since the world began, on real time."""
    access: Access
    controllers: tuple[ControllerStatus, ...]
    nodes: tuple[NodeStatus, ...]
    replicas: tuple[ReplicaStatus, ...]
    routable: int
    open_requests: int
    waiting: int
    faults: tuple[FaultStatus, ...]
    invariants: tuple[InvariantStatus, ...]
    quiescent_instants: int
    happened: Mapping[str, int]
    hardware_performance_validated: bool = False


@attrs.frozen(kw_only=True)
class ParameterStatus:
    """What may be said of a kind of fault."""

    name: str
    about: str
    takes: str
    default: int | str


@attrs.frozen(kw_only=True)
class KindStatus:
    """What may be asked for."""

    kind: str
    befalls: str
    about: str
    heals: str
    parameters: tuple[ParameterStatus, ...]


@attrs.frozen(kw_only=True)
class FaultsStatus:
    """All kinds, and what is and was."""

    in_force: tuple[FaultStatus, ...]
    over: tuple[FaultStatus, ...]
    """The newest."""
    kinds: tuple[KindStatus, ...]


def serving_status(world: World, access: Access, board: FaultBoard, watch: Watch) -> ServingStatus:
    """The world now."""
    kernel = world.controller.kernel if world.controller.up else None
    reports = {} if kernel is None else kernel.state.replicas
    assigned = {} if kernel is None else kernel.state.assignments
    return ServingStatus(
        seed=world.run.seed,
        now_ms=virtual_ms(),
        access=access,
        controllers=tuple(
            ControllerStatus(number=number, controller=host.host, standing=standing(host))
            for number, host in enumerate(world.controllers, 1)
        ),
        nodes=tuple(_node(world, number) for number in range(len(world.nodes))),
        replicas=tuple(
            ReplicaStatus(assignment=name, node=one.node, state=reports[name].state.value if name in reports else None)
            for name, one in sorted(assigned.items())
        ),
        routable=0 if kernel is None else world.routable(),
        open_requests=0 if kernel is None else len(kernel.state.open),
        waiting=0 if kernel is None else sum(len(queue) for queue in kernel.observed.queues.values()),
        faults=tuple(fault_status(one) for one in board.in_force.values()),
        invariants=invariants_status(world, watch),
        quiescent_instants=world.run.instants,
        happened=dict(sorted(world.run.happened.items())),
    )


def invariants_status(world: World, watch: Watch) -> tuple[InvariantStatus, ...]:
    """Those that were asked, and whatever else broke."""
    names = sorted({*world.run.asked, *watch.broken})
    return tuple(
        InvariantStatus(name=name, times_asked=world.run.asked[name], broken=watch.broken.get(name)) for name in names
    )


def faults_status(board: FaultBoard, kinds: Mapping[str, FaultKind]) -> FaultsStatus:
    """What there is to ask for, and what came of it."""
    return FaultsStatus(
        in_force=tuple(fault_status(one) for one in board.in_force.values()),
        over=tuple(fault_status(one) for one in board.ended),
        kinds=tuple(
            KindStatus(
                kind=kind.name,
                befalls=things(kind),
                about=kind.about,
                heals="by itself" if kind.by_itself else "when told to, or after for_ms",
                parameters=tuple(_parameter(one) for one in kind.parameters),
            )
            for kind in kinds.values()
        ),
    )


def fault_status(fault: Fault) -> FaultStatus:
    """One of them."""
    case = fault.case
    return FaultStatus(
        id=fault.number,
        kind=fault.kind.name,
        befalls=f"{things(fault.kind)} {case.number + 1}",
        parameters=case.values,
        heals=_heals(fault),
        began_ms=fault.began_ms,
        ended_ms=fault.ended_ms,
        problem=fault.problem,
    )


def _heals(fault: Fault) -> str:
    if fault.ended_ms is not None:
        return "over"
    if fault.kind.by_itself:
        return "by itself"
    if fault.case.told_to_heal.is_set():
        return "now"
    return "when told to" if fault.case.for_ms is None else f"after {fault.case.for_ms} ms"


def _parameter(one: Parameter) -> ParameterStatus:
    return ParameterStatus(name=one.name, about=one.about, takes=one.told, default=one.default)


def _node(world: World, number: int) -> NodeStatus:
    host = world.nodes[number]
    known = world.controller.kernel.state.nodes.get(host.name) if world.controller.up else None
    return NodeStatus(
        number=number + 1,
        node=host.name,
        agent=host.up,
        liveness=None if known is None else known.liveness.value,
        engines=tuple(start for _, start in host.running()),
        lease_ms=host.lease_left_ms(),
    )
