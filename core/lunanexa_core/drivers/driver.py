"""What a driver is: how one kind of engine is started, judged, identified, measured and stopped.

A driver is a frozen value of pure functions, so that each is tested with golden files and no process.
"""

import enum
from collections.abc import Callable, Mapping

import attrs

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.ids import StartId
from lunanexa_core.southbound.documents import DesiredAssignment
from lunanexa_core.workload import Dialect


@attrs.frozen(kw_only=True)
class LaunchInput:
    """One start of an engine of ours: it listens on ``127.0.0.1:port`` only."""

    start: StartId
    assignment: DesiredAssignment
    port: int


@attrs.frozen(kw_only=True)
class LaunchPlan:
    """The whole start. ``environment`` is all that the engine gets; a key is in it, never in ``argv``.
    A replica's starts follow one another in one log."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = attrs.field(repr=False)
    log_name: str


class LaunchRefusal(enum.Enum):
    """Why an engine specification can't be started. The value is what an operator reads."""

    UNKNOWN_DRIVER = "no such driver"
    NO_BINARY = "engine.binary is missing"
    BINARY_NOT_ABSOLUTE = "engine.binary is not an absolute path"
    NO_MODEL = "engine.model_path is missing"
    MODEL_NOT_ABSOLUTE = "engine.model_path is not an absolute path"
    BAD_SERVED_NAME = "engine.served_name is empty, begins with a dash or holds a comma"
    NO_SLOTS = "engine.slots is below 1"
    NUL_IN_TEXT = "a text of the engine holds a NUL character"
    ADOPTED_ONLY = "this driver only adopts, and engine.url is missing"
    URL_AND_BINARY = "engine.url and engine.binary exclude each other"
    BAD_URL = "engine.url is not http://host:port"


class Health(enum.Enum):
    """What an answer on the health path says. ``BROKEN``: it answers, and won't be ready as it is."""

    READY = "ready"
    LOADING = "loading"
    BROKEN = "broken"


class IdentityFinding(enum.Enum):
    """What ``/v1/models`` says of who answers. ``NO_SLOT``: the right model, but no place for a start id."""

    PROVEN = "proven"
    WRONG = "wrong"
    NO_SLOT = "no_slot"
    UNREADABLE = "unreadable"


@attrs.frozen(kw_only=True)
class IdentityQuestion:
    """Who should answer. ``start`` is ``None`` for an adopted engine, which never heard of a start id."""

    served_name: str
    start: StartId | None


@attrs.frozen(kw_only=True)
class Capabilities:
    """What the gateway may rely on. False where an engine's conduct is not known."""

    unary_departure_seen: bool = False
    """Whether the engine stops working for a client that left without ``stream`` too; if not, such a request is
    better sent as a stream."""
    usage_in_stream: bool = False
    """Whether ``stream_options.include_usage`` is understood."""


@attrs.frozen(kw_only=True)
class MetricMap:
    """The engine's names (Prometheus text) for what routing wants to know."""

    running: str
    waiting: str


@attrs.frozen
class StopPolicy:
    """How an engine is asked to end. ``second_terminate``: another SIGTERM at half of the stop timeout, for
    an engine that clings to open connections after the first. SIGKILL follows at its end in any case."""

    second_terminate: bool = False


@attrs.frozen(kw_only=True)
class Driver:
    """One kind of engine. ``metrics_path`` and ``metrics`` are ``None`` where nothing can be read."""

    name: str
    dialects: Callable[[EngineSpec], frozenset[Dialect]]
    """What the engine answers to when it is started as specified."""
    health_path: str
    models_path: str = "/v1/models"
    metrics_path: str | None = None
    metrics: MetricMap | None = None
    capabilities: Capabilities = Capabilities()
    stop: StopPolicy = StopPolicy()
    launch: Callable[[LaunchInput], LaunchPlan | LaunchRefusal]
    judge_health: Callable[[int, bytes], Health]
    identify: Callable[[bytes, IdentityQuestion], IdentityFinding]
