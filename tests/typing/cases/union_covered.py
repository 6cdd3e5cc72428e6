"""Accepted: every member of an outcome is named, so `assert_never` sees nothing."""

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
    match outcome:
        case Granted():
            return 200
        case Refused.NODE_UNKNOWN:
            return 404
        case Refused.NODE_DRAINING:
            return 409
    assert_never(outcome)
