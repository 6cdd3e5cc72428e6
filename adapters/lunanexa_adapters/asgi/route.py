"""What a route is, in words that ``/openapi.json`` is made of."""

import enum
from typing import Any, Final

import attrs

from lunanexa_core.outcomes import Outcome

IDENTIFIER: Final = "^[A-Za-z0-9_.:-]{1,256}$"


class Plane(enum.Enum):
    """Whose key opens a route. The value is its tag."""

    PROBES = "probes"
    DATA = "data plane"
    OPERATOR = "operator plane"
    NODE = "node plane"


@attrs.frozen(kw_only=True)
class Parameter:
    """In ``path``, ``query`` or ``header``."""

    name: str
    place: str
    schema: dict[str, Any]
    described: str = ""
    required: bool = False


@attrs.frozen(kw_only=True)
class Route:
    """``answer``: a documented type, or a media type; ``None`` for a bare 204. ``engine``: answers may be an
    engine's own, its 4xx included."""

    method: str
    path: str
    summary: str
    plane: Plane
    answer: Any = None
    body: type | None = None
    form: bool = False
    """The body is ``multipart/form-data``."""
    parameters: tuple[Parameter, ...] = ()
    refusals: tuple[Outcome, ...] = ()
    signed_answer: bool = False
    nothing: bool = False
    """204 is an answer too."""
    engine: bool = False
    media: tuple[str, ...] = ()
    """What an engine may answer with beside JSON and events."""
    anonymous: bool = False
    """Needs no key and no certificate."""
    fails_with: type | None = None
    """What an error of an admitted request is told with; it has the member ``error`` of the one shape."""


def identifier(name: str) -> Parameter:
    """A part of the address."""
    return Parameter(name=name, place="path", schema={"type": "string", "pattern": IDENTIFIER})


LIMIT: Final = Parameter(
    name="limit", place="query", schema={"type": "integer", "minimum": 1, "maximum": 500, "default": 50}
)
KEY_REFUSALS: Final = (Outcome.INVALID_API_KEY, Outcome.PERMISSION_DENIED, Outcome.STORE_UNAVAILABLE)
NODE: Final = identifier("node")


def admin_route(method: str, path: str, summary: str, answer: Any, *refusals: Outcome, **more: Any) -> Route:
    """Of the operator plane."""
    return Route(
        method=method,
        path="/admin/v1" + path,
        summary=summary,
        plane=Plane.OPERATOR,
        answer=answer,
        refusals=(*KEY_REFUSALS, *refusals),
        **more,
    )
