"""What an engine is told at its start: values only, so that the simulator can run many in one process."""

import enum

import attrs

from lunanexa_apps.engine.faults import Fault


class Mode(enum.Enum):
    MODEL = "model"
    ECHO = "echo"


OWNER = "lunanexa-reference-engine"
DESCRIPTION = "n-gram reference engine, not a neural model"
DEFAULT_CHAT_TOKENS = 512
"""Where a chat request names no limit: greedy n-gram text can circle for ever."""
DEFAULT_COMPLETION_TOKENS = 16
"""The default of OpenAI's ``/v1/completions``."""
DEFAULT_DIMENSIONS = 256
MAX_DIMENSIONS = 2048


@attrs.frozen(kw_only=True)
class EngineSettings:
    """``names``: the first is the model's id and stands in each answer; the others are accepted too.
    ``allow_faults``: the faults may be changed by ``POST /faults``."""

    names: tuple[str, ...] = attrs.field(default=("reference",), validator=attrs.validators.min_len(1))
    mode: Mode = Mode.MODEL
    ttft_ms: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))
    itl_ms: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))
    slots: int = attrs.field(default=8, validator=attrs.validators.ge(1))
    queue: int = attrs.field(default=256, validator=attrs.validators.ge(0))
    context_tokens: int = attrs.field(default=4096, validator=attrs.validators.ge(2))
    seed: int = 0
    api_key: str | None = attrs.field(default=None, repr=False)
    max_body_bytes: int = attrs.field(default=32 << 20, validator=attrs.validators.ge(1))
    version: str = "unknown"
    faults: tuple[Fault, ...] = ()
    allow_faults: bool = False
