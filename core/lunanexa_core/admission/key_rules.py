"""Which keys may be made, and which may be revoked."""

from typing import Final

import attrs

from lunanexa_core.events import KeyCreated, KeyRevoked
from lunanexa_core.ids import KeyId, is_identifier
from lunanexa_core.keys import ApiKey, Role
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.state import State
from lunanexa_core.time import Instant

KEYS_MAX: Final = 10_000
ALIASES_MAX: Final = 256
NAME_MAX: Final = 256
LIMIT_MAX: Final = 1_000_000_000
EXPIRY_MAX_MS: Final = 10 * 366 * 86_400_000


def create_key(state: State, key: ApiKey, now: Instant) -> KeyCreated | Refusal:
    """The key as it comes into force, or the field at fault."""
    limits = {
        "concurrency": key.concurrency,
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
    }
    for param, limit in limits.items():
        if limit is not None and not 1 <= limit <= LIMIT_MAX:
            return _invalid(param, f"must be 1 to {LIMIT_MAX}")
    if key.name is not None and not (1 <= len(key.name) <= NAME_MAX and key.name.isprintable()):
        return _invalid("name", f"has 1 to {NAME_MAX} printable characters")
    if len(key.aliases) > ALIASES_MAX:
        return _invalid("aliases", f"are {ALIASES_MAX} at most")
    if not all(1 <= len(alias) <= 256 and alias.isprintable() for alias in key.aliases):
        return _invalid("aliases", "an alias has 1 to 256 printable characters")
    expires_wall_ms = key.expires_wall_ms
    if expires_wall_ms is not None and not now.wall_ms < expires_wall_ms <= now.wall_ms + EXPIRY_MAX_MS:
        return _invalid("expires_in_ms", f"must be 1 to {EXPIRY_MAX_MS}")
    if not is_identifier(key.key) or key.key in state.keys:
        return _invalid("key", "must be an identifier of no other key")
    if key.digest in state.key_of_digest:
        return _invalid("key", "the secret belongs to another key")
    if len(state.keys) >= KEYS_MAX:
        return _invalid("key", f"there are {KEYS_MAX} keys already; revoke some first")
    return KeyCreated(attrs.evolve(key, created_wall_ms=now.wall_ms))


def revoke_key(state: State, key_id: KeyId, now: Instant) -> KeyRevoked | Refusal:
    """The end of a key. The last one that lets an operator in stays."""
    key = state.keys.get(key_id)
    if key is None:
        return no_key(key_id)
    operators = {
        known.key for known in state.keys.values() if Role.OPERATOR in known.roles and not known.expired(now.wall_ms)
    }
    if operators == {key_id}:
        return _invalid("key", f"{key_id} is the last key of an operator: without it nobody could get in again")
    return KeyRevoked(key_id)


def no_key(key_id: str) -> Refusal:
    """There is none of this name."""
    return Refusal(outcome=Outcome.NOT_FOUND, message=f"There is no key {key_id[:256]!r}.", param="key")


def _invalid(param: str, message: str) -> Refusal:
    return Refusal(outcome=Outcome.INVALID_REQUEST, message=message, param=param)
