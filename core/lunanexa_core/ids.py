"""Identifiers: their types, their written form, and how to check one. They are never generated here.

An identifier of ours is ``<kind>_`` and 26 Crockford base-32 characters: 48 bits of milliseconds,
then 80 random bits, so that identifiers of one kind sort by age (the form of ULID).
"""

import re
from typing import NewType

ClusterId = NewType("ClusterId", str)
NodeId = NewType("NodeId", str)
DeploymentId = NewType("DeploymentId", str)
AssignmentId = NewType("AssignmentId", str)
StartId = NewType("StartId", str)
WorkloadId = NewType("WorkloadId", str)
SessionId = NewType("SessionId", str)
KeyId = NewType("KeyId", str)
TenantId = NewType("TenantId", str)
Alias = NewType("Alias", str)
RequestId = NewType("RequestId", str)
BootId = NewType("BootId", str)
HolderId = NewType("HolderId", str)

CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
MAX_LENGTH = 256
_IDENTIFIER = re.compile(r"[A-Za-z0-9_.:-]{1,256}\Z")


def format_id(kind: str, wall_ms: int, random_bits: int) -> str:
    """``kind`` and 26 characters. ``random_bits`` must fit 80 bits; ``wall_ms`` 48."""
    assert 0 <= wall_ms < 1 << 48, wall_ms
    assert 0 <= random_bits < 1 << 80, random_bits
    value = (wall_ms << 80) | random_bits
    return f"{kind}_" + "".join(CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))


def is_identifier(text: str) -> bool:
    """ASCII letters, digits and ``-_.:``, 256 at most, not empty."""
    return _IDENTIFIER.match(text) is not None
