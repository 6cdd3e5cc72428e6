"""Refused: an outcome that gained a member stops every match that does not name it."""

import enum
from typing import TypeAlias, assert_never

import attrs


@attrs.frozen
class Granted:
    epoch: int


class Refused(enum.Enum):
    NODE_UNKNOWN = "node_unknown"
    NODE_DRAINING = "node_draining"


Outcome: TypeAlias = Granted | Refused


def http_status(outcome: Outcome) -> int:
    match outcome:  # says mypy: exhaustive-match  # says pyright: reportMatchNotExhaustive
        case Granted():
            return 200
        case Refused.NODE_UNKNOWN:
            return 404
    assert_never(outcome)  # says mypy: arg-type  # says pyright: reportArgumentType
