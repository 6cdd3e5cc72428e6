"""Documents of the operator plane's keys."""

from typing import Final

import attrs

from lunanexa_core.admission.key_rules import ALIASES_MAX, EXPIRY_MAX_MS, LIMIT_MAX, NAME_MAX
from lunanexa_core.allowance import Allowance
from lunanexa_core.contract.operator import UsageStatus
from lunanexa_core.contract.schema import rules
from lunanexa_core.ids import Alias, KeyId, TenantId
from lunanexa_core.workload import DataClass, Priority

_LIMIT: Final = rules(minimum=1, maximum=LIMIT_MAX)


@attrs.frozen(kw_only=True)
class KeyRequest:
    """A key as it is asked for. A limit that is left out or null is none; ``aliases`` empty: all."""

    name: str | None = attrs.field(default=None, metadata=rules(minLength=1, maxLength=NAME_MAX))
    aliases: frozenset[Alias] = attrs.field(default=frozenset(), metadata=rules(maxItems=ALIASES_MAX))
    concurrency: int | None = attrs.field(default=None, metadata=_LIMIT)
    requests_per_minute: int | None = attrs.field(default=None, metadata=_LIMIT)
    tokens_per_minute: int | None = attrs.field(default=None, metadata=_LIMIT)
    expires_in_ms: int | None = attrs.field(default=None, metadata=rules(minimum=1, maximum=EXPIRY_MAX_MS))
    """From now: times of two machines are never compared."""
    priority_max: Priority = Priority.CRITICAL
    data_class_max: DataClass = DataClass.RESTRICTED


@attrs.frozen(kw_only=True)
class KeyDocument:
    """A key in force, and what was used of it. ``state``: active, expired."""

    key: KeyId
    name: str | None
    tenant: TenantId
    roles: tuple[str, ...]
    state: str
    aliases: tuple[Alias, ...]
    concurrency: int | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    priority_max: Priority
    data_class_max: DataClass
    created_wall_ms: int | None
    expires_wall_ms: int | None
    in_progress: int
    requests_window: Allowance | None
    tokens_window: Allowance | None
    usage: UsageStatus


@attrs.frozen(kw_only=True)
class KeyMade(KeyDocument):
    """A key that was just made, with its secret: it is shown this once."""

    secret: str


@attrs.frozen(kw_only=True)
class KeyList:
    """All keys in force, in stable order."""

    data: tuple[KeyDocument, ...]


@attrs.frozen(kw_only=True)
class KeyRevoked:
    """The key is void."""

    key: KeyId
    revoked: bool
