"""What was asked of ``lunanexa up``, what was found on the machine, and what was chosen: values alone."""

import enum
from collections.abc import Mapping

import attrs

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.detection import RecognisedServer
from lunanexa_core.ids import Alias, DeploymentId


@attrs.frozen(kw_only=True)
class EngineWish:
    """What was asked for; ``None`` where nothing was said. Paths are absolute."""

    model: str | None = None
    engine: str | None = None
    binary: str | None = None
    arguments: tuple[str, ...] = ()
    """For the engine to start, after the driver's own."""
    adopt: tuple[str, ...] = ()
    """URLs of servers that run already."""
    adopt_keys: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """Keys of those that ask for one, by URL."""
    alias: str | None = None
    slots: int | None = None
    context_tokens: int | None = None


class Silence(enum.Enum):
    """Why a server that shall be adopted tells no models."""

    NO_ANSWER = "no answer"
    LOADING = "loading"
    KEY = "it wants another key, or one at all"
    NO_LIST = "no model list"


@attrs.frozen(kw_only=True)
class AdoptedServer:
    """A server that shall be adopted, and what it told."""

    url: str
    told: RecognisedServer | Silence


@attrs.frozen(kw_only=True)
class Surroundings:
    """What was found. ``model_head``: the model file's first bytes, ``None`` when it can't be read."""

    llama_server: str | None = None
    reference_engine: str | None = None
    binary_runs: bool = False
    model_head: bytes | None = None
    adopted: tuple[AdoptedServer, ...] = ()


@attrs.frozen(kw_only=True)
class EngineChoice:
    """One deployment: the alias that clients ask for, and the engine that serves it."""

    deployment: DeploymentId
    alias: Alias
    engine: EngineSpec
    allow_declared: bool = False


@attrs.frozen(kw_only=True)
class Chosen:
    """All that shall serve (one engine at least), in words, and what of it a user would not expect."""

    engines: tuple[EngineChoice, ...]
    description: str
    notes: tuple[str, ...] = ()
    adopt_keys: Mapping[str, str] = attrs.field(factory=dict, repr=False)


@attrs.frozen(kw_only=True)
class ChoiceRefused:
    """Why nothing can serve as asked, and what to do."""

    message: str
    hint: str
