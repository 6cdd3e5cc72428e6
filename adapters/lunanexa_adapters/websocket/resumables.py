"""Workloads that a client may come back for, in this process alone."""

import hmac
from typing import Final

import attrs

from lunanexa_adapters.websocket.flow import Flow
from lunanexa_core.ids import SessionId, WorkloadId, is_identifier
from lunanexa_core.keys import secret_digest
from lunanexa_ports.ids import IdSource

_SEPARATOR: Final = "~"
"""Stands in no identifier, and in no URL-safe base 64."""


@attrs.frozen
class Gone:
    """Nothing is kept under a token; the workload that it names, where it names one."""

    workload: WorkloadId | None


@attrs.frozen
class _Kept:
    flow: Flow
    workload: WorkloadId
    key_digest: str
    secret_digest: str


class Resumables:
    """A token is ``<session>~<workload>~<secret>``. It opens its workload only for the key that made it."""

    def __init__(self, ids: IdSource, session: SessionId, *, most: int) -> None:
        self._ids = ids
        self._session = session
        self._most = most
        self._kept: dict[str, _Kept] = {}
        self._digest_of: dict[Flow, str] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def issue(self, flow: Flow, workload: WorkloadId, key_digest: str) -> str | None:
        """A token for ``flow``; ``None`` when too many are out."""
        if len(self._kept) >= self._most:
            return None
        secret = self._ids.secret()
        digest = secret_digest(secret)
        self._kept[digest] = _Kept(flow, workload, key_digest, digest)
        self._digest_of[flow] = digest
        return _SEPARATOR.join((self._session, workload, secret))

    def find(self, token: str, key_digest: str) -> Flow | Gone:
        """The workload that ``token`` was issued for, if this key may have it."""
        session, workload, secret = [*token.split(_SEPARATOR, 2), "", ""][:3]
        named = WorkloadId(workload) if is_identifier(workload) else None
        if not secret.isascii():
            return Gone(named)
        # Found by digest: how long a look-up takes says nothing of a secret.
        digest = secret_digest(secret)
        kept = self._kept.get(digest)
        if kept is None or not kept.flow.log.kept or session != self._session or workload != kept.workload:
            return Gone(named)
        if not hmac.compare_digest(kept.secret_digest, digest) or not hmac.compare_digest(kept.key_digest, key_digest):
            return Gone(named)
        return kept.flow

    def forget(self, flow: Flow) -> None:
        """It is kept no longer."""
        digest = self._digest_of.pop(flow, None)
        if digest is not None:
            del self._kept[digest]
        flow.log.forget()

    def let_go(self) -> None:
        """Nobody can come back any more: what nobody is connected to ends."""
        for kept in self._kept.values():
            if kept.flow.line is None:
                kept.flow.scope.cancel(reason="nobody can come back for it")
            kept.flow.keeping.cancel(reason="nobody can come back for it")
