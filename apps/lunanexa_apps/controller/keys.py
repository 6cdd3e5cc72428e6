"""Keys as operators make, see and revoke them. A secret is shown once, in the answer that makes it."""

import attrs

from lunanexa_apps.controller.authority import find_operator
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.unreadable import read_document
from lunanexa_core.admission.key_rules import no_key
from lunanexa_core.admission.limits import allowances_of
from lunanexa_core.allowance import Allowance
from lunanexa_core.canonical import JsonValue
from lunanexa_core.commands import CreateKey, RevokeKey
from lunanexa_core.contract.keys import KeyRequest
from lunanexa_core.events import KeyCreated
from lunanexa_core.ids import KeyId
from lunanexa_core.keys import API_KEY_PREFIX, ApiKey, Role, secret_digest
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.state import Totals
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.ids import IdSource
from lunanexa_ports.operator import KeyPlane


class KernelKeys(KeyPlane):
    """Operators' view of the kernel's keys. ``installation`` are those that each start brings into force again."""

    def __init__(self, kernel: Kernel, ids: IdSource, installation: frozenset[KeyId]) -> None:
        self._kernel = kernel
        self._ids = ids
        self._installation = installation

    async def create_key(self, token: str | None, document: JsonValue) -> JsonValue | Refusal:
        operator = find_operator(self._kernel, token, Role.OPERATOR)
        if isinstance(operator, Refusal):
            return operator
        asked = read_document(KeyRequest, document)
        if isinstance(asked, Refusal):
            return asked
        secret = API_KEY_PREFIX + self._ids.secret()
        key = ApiKey(
            key=KeyId(self._ids.new("key")),
            tenant=operator.tenant,
            digest=secret_digest(secret),
            roles=frozenset({Role.INFERENCE}),
            aliases=asked.aliases,
            concurrency=asked.concurrency,
            expires_wall_ms=None if asked.expires_in_ms is None else self._kernel.now().wall_ms + asked.expires_in_ms,
            requests_per_minute=asked.requests_per_minute,
            tokens_per_minute=asked.tokens_per_minute,
            name=asked.name,
            priority_max=asked.priority_max,
            data_class_max=asked.data_class_max,
        )
        answer = await self._ask(CreateKey(key), operator)
        if isinstance(answer, Refusal):
            return answer
        assert isinstance(answer, KeyCreated), answer
        return {**self._shown(answer.key), "secret": secret}

    async def keys(self, token: str | None) -> JsonValue | Refusal:
        operator = find_operator(self._kernel, token, Role.OPERATOR, Role.AUDITOR)
        if isinstance(operator, Refusal):
            return operator
        return {"data": [self._shown(key) for _, key in sorted(self._kernel.state.keys.items())]}

    async def key(self, token: str | None, key: str) -> JsonValue | Refusal:
        operator = find_operator(self._kernel, token, Role.OPERATOR, Role.AUDITOR)
        if isinstance(operator, Refusal):
            return operator
        found = self._kernel.state.keys.get(KeyId(key))
        return no_key(key) if found is None else self._shown(found)

    async def revoke_key(self, token: str | None, key: str) -> JsonValue | Refusal:
        operator = find_operator(self._kernel, token, Role.OPERATOR)
        if isinstance(operator, Refusal):
            return operator
        if key in self._installation:
            return Refusal(
                outcome=Outcome.INVALID_REQUEST,
                message=f"{key} belongs to the installation, and each start brings it into force again; to replace it, "
                "remove its file from the data directory and start the controller again.",
                param="key",
            )
        answer = await self._ask(RevokeKey(KeyId(key)), operator)
        return answer if isinstance(answer, Refusal) else {"key": key, "revoked": True}

    async def _ask(self, command: CreateKey | RevokeKey, operator: ApiKey) -> object:
        try:
            return await self._kernel.ask(command, operator.key)
        except PortUnavailable:
            return Refusal(outcome=Outcome.STORE_UNAVAILABLE, message="The controller is ending.")

    def _shown(self, key: ApiKey) -> dict[str, JsonValue]:
        state, now = self._kernel.state, self._kernel.now()
        allowances, totals = allowances_of(state, key, now), state.totals_of_key.get(key.key, Totals())
        return {
            "key": key.key,
            "name": key.name,
            "tenant": key.tenant,
            "roles": sorted(role.value for role in key.roles),
            "state": "expired" if key.expired(now.wall_ms) else "active",
            "aliases": sorted(key.aliases),
            "concurrency": key.concurrency,
            "requests_per_minute": key.requests_per_minute,
            "tokens_per_minute": key.tokens_per_minute,
            "priority_max": key.priority_max.value,
            "data_class_max": key.data_class_max.value,
            "created_wall_ms": key.created_wall_ms,
            "expires_wall_ms": key.expires_wall_ms,
            "in_progress": state.open_of_key.get(key.key, 0),
            "requests_window": _window(allowances.requests),
            "tokens_window": _window(allowances.tokens),
            "usage": {
                "requests": totals.requests,
                "succeeded": totals.succeeded,
                "failed": totals.failed,
                "cancelled": totals.cancelled,
                "input_tokens": totals.usage.input_tokens,
                "output_tokens": totals.usage.output_tokens,
                "estimated": totals.usage.estimated,
            },
        }


def _window(allowance: Allowance | None) -> JsonValue:
    return None if allowance is None else attrs.asdict(allowance)
