"""API keys and operator tokens as the kernel knows them: by the digest of their secret only."""

import enum
import hashlib
import hmac
from typing import Final

import attrs

from lunanexa_core.ids import Alias, KeyId, TenantId
from lunanexa_core.workload import DataClass, Priority

MIN_SECRET_CHARACTERS: Final = 32
API_KEY_PREFIX: Final = "lnx_"


class Role(enum.Enum):
    """What a token may do. A token holds only its own roles."""

    OPERATOR = "operator"
    AUDITOR = "auditor"
    MONITOR = "monitor"
    INFERENCE = "inference"


@attrs.frozen(kw_only=True)
class ApiKey:
    """A key in force. ``aliases`` empty: all aliases. A limit that is ``None``: not limited."""

    key: KeyId
    tenant: TenantId
    digest: str
    """SHA-256 of the secret, hex."""
    roles: frozenset[Role]
    aliases: frozenset[Alias] = frozenset()
    concurrency: int | None = None
    expires_wall_ms: int | None = None
    default_output_tokens: int = 1_024
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    name: str | None = None
    """What people call it."""
    created_wall_ms: int | None = None
    priority_max: Priority = Priority.CRITICAL
    data_class_max: DataClass = DataClass.RESTRICTED

    def expired(self, wall_ms: int) -> bool:
        """Whether its time is over."""
        return self.expires_wall_ms is not None and wall_ms >= self.expires_wall_ms


def secret_digest(secret: str) -> str:
    """SHA-256 of a secret, hex. Secrets have 256 random bits, so that a slow hash would add nothing."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class WeakSecret(enum.Enum):
    """Why a configured secret is not accepted at start-up."""

    TOO_SHORT = f"shorter than {MIN_SECRET_CHARACTERS} characters"
    PLACEHOLDER = "a placeholder"
    UNIFORM = "made of too few different characters"


# Long words only: 43 random characters hold one of these by chance less than once in ten million times.
_PLACEHOLDERS = ("changeme", "change-me", "secret", "password", "placeholder", "example")


def weak_secret(secret: str) -> WeakSecret | None:
    """Why ``secret`` must not guard anything, or ``None``."""
    if len(secret) < MIN_SECRET_CHARACTERS:
        return WeakSecret.TOO_SHORT
    if any(word in secret.lower() for word in _PLACEHOLDERS):
        return WeakSecret.PLACEHOLDER
    if len(set(secret)) < 8:
        return WeakSecret.UNIFORM
    return None


def derive_engine_key(secret: str, assignment: str, generation: int) -> str:
    """The key that one assignment's engine asks for: HMAC-SHA256 of the cluster's secret, hex. It is derived
    whenever it is needed, so that it stands in no journal."""
    return hmac.new(secret.encode(), f"{assignment}\0{generation}".encode(), hashlib.sha256).hexdigest()


def derive_challenge(secret: str, node: str, wall_ms: int) -> str:
    """What only who has the cluster's secret can say to a node at that time. No engine's key is equal to one."""
    return hmac.new(secret.encode(), f"challenge\0{node}\0{wall_ms}".encode(), hashlib.sha256).hexdigest()
