"""Enrolment tokens: one line that an operator carries to a machine."""

import base64
import hashlib
import json
import re
from typing import Final

import attrs

from lunanexa_core.ids import NodeId, is_identifier

PREFIX: Final = "lnxnode1_"
TOKEN_MS: Final = 900_000
"""How long a token is good: fifteen minutes, and never longer."""
TOKENS_MAX: Final = 1_024
"""Tokens that may be good at the same time."""
_CHARACTERS_MAX: Final = 2_048
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{64}\Z")
_MEMBERS: Final = {"node", "token", "secret", "authority"}


@attrs.frozen(kw_only=True)
class EnrolmentToken:
    """What the line holds. It is of use to one node, once."""

    node: NodeId
    token: str
    """Its name, which is no secret."""
    secret: str = attrs.field(repr=False)
    authority: str
    """The fingerprint of the cluster's authority: who shows another one is told nothing."""
    loopback: bool = False
    """For a node of the controller's own machine, whose engines are reached on its loopback."""

    def line(self) -> str:
        payload: dict[str, str | bool] = {"node": self.node, "token": self.token}
        payload |= {"secret": self.secret, "authority": self.authority}
        if self.loopback:
            payload["loopback"] = True
        body = json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()
        return PREFIX + base64.urlsafe_b64encode(body + _checksum(body)).decode().rstrip("=")


def _checksum(body: bytes) -> bytes:
    """Against slips of the hand, and nothing else."""
    return hashlib.sha256(body).digest()[:4]


@attrs.frozen
class BadToken:
    """Why a line is no token, without any of it."""

    problem: str


def parse_token(line: str) -> EnrolmentToken | BadToken:
    """Reads what :meth:`EnrolmentToken.line` wrote; white space around it is forgiven."""
    text = line.strip()
    if not text.startswith(PREFIX):
        return BadToken(f"it does not begin with {PREFIX}")
    if len(text) > _CHARACTERS_MAX:
        return BadToken("it is too long")
    encoded = text.removeprefix(PREFIX)
    try:
        raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return BadToken("it has characters that no token has")
    body, checksum = raw[:-4], raw[-4:]
    if _checksum(body) != checksum:
        return BadToken("a part of it is missing or was changed on the way")
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return BadToken("it is of another version")
    loopback = found.pop("loopback", False)
    if (
        set(found) != _MEMBERS
        or not all(isinstance(one, str) for one in found.values())
        or loopback not in (True, False)
    ):
        return BadToken("it is of another version")
    token = EnrolmentToken(**found, loopback=loopback is True)
    if not is_identifier(token.node) or not is_identifier(token.token) or not _FINGERPRINT.match(token.authority):
        return BadToken("it is of another version")
    return token


@attrs.frozen(kw_only=True)
class KnownToken:
    """A token as the kernel knows it: by the digest of its secret."""

    token: str
    node: NodeId
    digest: str
    """SHA-256 of the secret, hex."""
    expires_wall_ms: int
    loopback: bool = False
    """Whether the node may do without a data listener."""
    used_by: str | None = None
    """The signing key (raw public key, hex) that it let in; it lets no other in."""
