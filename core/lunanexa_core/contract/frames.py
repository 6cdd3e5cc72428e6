"""Frames of the WebSocket subprotocol ``lunanexa.v1``: their values. How they are written: ``frame_text``.

The rules that the frames stand for: ``id`` is the client's name of one workload on one connection. ``seq``
rises by one from 1, over the events and the ``completed`` of a workload. An event costs one credit, of which a
workload has :data:`CREDITS` at ``submit`` and again at ``resume``; other frames cost none. ``completed``,
``failed`` and ``cancelled`` end a workload. A ``resume`` is answered by what followed the event ``after``,
or by ``failed`` with the code :data:`RESUME_GONE`.
"""

from typing import Any, Final, TypeAlias

import attrs

from lunanexa_core.ids import WorkloadId

SUBPROTOCOL: Final = "lunanexa.v1"
CREDITS: Final = 256
"""Events that may be in flight before the client says more."""
CREDITS_MAX: Final = 65_536
"""The most that one ``credit`` frame grants."""
RESUME_WINDOW_MS: Final = 30_000
"""How long the events of a resumable workload are kept after its connection broke."""
RESUME_GONE: Final = "resume_gone"

JsonObject: TypeAlias = dict[str, Any]
"""A document that passes through: of it only that it is a JSON object is looked at."""


@attrs.frozen(kw_only=True)
class Submit:
    """Runs a workload. ``endpoint``: the dialect of ``request`` as its path under ``/v1`` (``chat/completions``);
    ``None``: ``request`` is the canonical envelope."""

    id: str
    request: JsonObject
    endpoint: str | None = None
    resumable: bool = False


@attrs.frozen
class Cancel:
    """Ends a workload; ``cancelled`` answers, or what ended it before."""

    id: str


@attrs.frozen
class Credit:
    """So many more events of a workload may be sent."""

    id: str
    events: int


@attrs.frozen
class Resume:
    """On a new connection: goes on with a workload after the event ``after`` (0: from its first)."""

    id: str
    after: int
    token: str = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class Accepted:
    """The workload is admitted. ``queue_position`` is 0 for the next one, ``None`` where it did not wait;
    ``resume_token`` is there when it is resumable. ``replayed``: its idempotency key stands for this workload, which
    has ended, and its answer is given again."""

    id: str
    workload_id: WorkloadId
    queue_position: int | None = None
    resume_token: str | None = attrs.field(default=None, repr=False)
    replayed: bool = False


@attrs.frozen
class Event:
    """One piece of output. ``data`` is any JSON value: the chunk that a stream of server-sent events would carry."""

    id: str
    seq: int
    data: Any


@attrs.frozen
class Completed:
    """The whole answer, or what a stream has at its end."""

    id: str
    seq: int
    response: JsonObject


@attrs.frozen
class Failed:
    """A refusal or a failure of one workload; ``error`` is the error document's ``error``."""

    id: str
    error: JsonObject


@attrs.frozen
class Cancelled:
    """The workload was cancelled, and this is its receipt, where it is durable already."""

    id: str
    receipt: JsonObject | None


@attrs.frozen
class Goaway:
    """The server stops: no new workloads here; connect again after this time."""

    retry_after_ms: int


ClientFrame: TypeAlias = Submit | Cancel | Credit | Resume
ServerFrame: TypeAlias = Accepted | Event | Completed | Failed | Cancelled | Goaway
