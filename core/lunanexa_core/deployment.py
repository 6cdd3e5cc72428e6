"""Deployments (what an operator wants served) and assignments (where one replica of it shall run)."""

import attrs

from lunanexa_core.ids import Alias, AssignmentId, DeploymentId, NodeId
from lunanexa_core.workload import DataClass, Dialect


@attrs.frozen(kw_only=True)
class EngineSpec:
    """How an engine is had: started by the agent (``binary``), or adopted where it answers (``url``)."""

    driver: str
    """Name in :data:`lunanexa_core.drivers.catalog.DRIVERS`."""
    served_name: str
    """The name that the engine itself knows the model by; the gateway writes it over the alias."""
    binary: str | None = None
    """Absolute path of the program; ``None`` for an adopted engine."""
    arguments: tuple[str, ...] = ()
    """Extra arguments of the operator, after the driver's own."""
    model_path: str | None = None
    url: str | None = None
    """``http://host:port`` of an adopted engine."""
    slots: int = 4
    """Requests that the engine works on at once; the gateway never grants more."""
    context_tokens: int | None = None
    dialects: tuple[Dialect, ...] | None = None
    """What it answers, where that is known better than its driver can; ``None``: what the driver says."""
    start_timeout_ms: int = 600_000
    stop_timeout_ms: int = 10_000
    restart_budget: int = 5
    """Crashes in a row before the replica is Failed; a run of ten minutes earns a fresh budget."""
    memory_mib: int | None = None
    """Memory of the machine that must be available before a start; ``None``: none is waited for."""
    memory_wait_ms: int = 120_000
    """How long one start waits for ``memory_mib``; then it has failed, as by a crash."""
    memory_limit_mib: int | None = None
    """What the engine's processes may hold together; an engine that holds more is drained and restarted."""


@attrs.frozen(kw_only=True)
class DeploymentSpec:
    """What an operator wants: an alias served by so many replicas of an engine."""

    deployment: DeploymentId
    alias: Alias
    engine: EngineSpec
    replicas: int = 1
    allow_declared: bool = False
    """Whether a replica whose identity is only declared (a remote URL) may be routed to."""
    data_class_max: DataClass = DataClass.RESTRICTED
    """The most restricted data that may be sent to it."""
    exclusive: bool = False
    """Whether there are never more engines than ``replicas``, wherever they run: a place is filled again only when
    the engine that had it is gone for certain (licence seats, one writer)."""
    cut_off_keep_ms: int | None = None
    """How long a node that is cut off from its controller keeps the engine after its lease has lapsed; ``None``:
    without limit, so that the place of an exclusive one could never be filled again."""


@attrs.frozen(kw_only=True)
class Deployment:
    """A deployment in force. ``generation`` rises with each change of its specification."""

    spec: DeploymentSpec
    generation: int
    engine_generation: int | None = None
    """The generation that brought ``spec.engine`` and ``spec.cut_off_keep_ms``; ``None``: this one."""

    @property
    def runs(self) -> int:
        """The generation of its replicas: they stay as they are for as long as what their nodes are told does."""
        return self.generation if self.engine_generation is None else self.engine_generation


@attrs.frozen(kw_only=True)
class Assignment:
    """One replica's place: this deployment, at that generation, on that node."""

    assignment: AssignmentId
    deployment: DeploymentId
    node: NodeId
    generation: int
    bound_ms: int | None = None
    """How long after its node's lease its engine is gone, whichever of its generations the node has; ``None``: nobody
    can say."""
