"""The sync face of the operator's calls."""

from collections.abc import Iterator
from functools import partial
from typing import Unpack

import attrs

from lunanexa_client.answers import Document, Page
from lunanexa_client.operator import AsyncOperator, JournalPage, OperatorPage
from lunanexa_client.portal import Portal
from lunanexa_client.settings import CallOptions
from lunanexa_core.journal_query import PageQuery, ReceiptQuery


class Operator:
    """As :class:`~lunanexa_client.operator.AsyncOperator`, reached as ``Client.operator``."""

    def __init__(self, portal: Portal, operator: AsyncOperator) -> None:
        self._portal = portal
        self._operator = operator

    def status(self, **options: Unpack[CallOptions]) -> Document:
        """Everything on one page: nodes, deployments and their replicas, queues, usage, the last receipts."""
        return self._portal.call(partial(self._operator.status, **options))

    def requests(self, *, limit: int = 50, **options: Unpack[CallOptions]) -> Document:
        """Requests of all keys: ``open``, and ``ended``; the newest ``limit`` of each."""
        return self._portal.call(partial(self._operator.requests, limit=limit, **options))

    def explain(self, workload_id: str, **options: Unpack[CallOptions]) -> Document:
        """One request, and why it went where it went."""
        return self._portal.call(partial(self._operator.explain, workload_id, **options))

    def receipts_page(self, query: ReceiptQuery, **options: Unpack[CallOptions]) -> OperatorPage:
        """One page of receipts of all keys, the newest first."""
        return self._portal.call(partial(self._operator.receipts_page, query, **options))

    def receipts(self, query: ReceiptQuery, **options: Unpack[CallOptions]) -> Iterator[Document]:
        """All receipts that ``query`` asks for, page by page."""
        following: ReceiptQuery | None = query
        while following is not None:
            page = self.receipts_page(following, **options)
            yield from page.items
            following = None if page.next_cursor is None else attrs.evolve(following, cursor=page.next_cursor)

    def api_keys(self, **options: Unpack[CallOptions]) -> tuple[Document, ...]:
        """Keys in force: limits, what is left of them, what was used."""
        return self._portal.call(partial(self._operator.api_keys, **options))

    def api_key(self, key_id: str, **options: Unpack[CallOptions]) -> Document:
        """One of them."""
        return self._portal.call(partial(self._operator.api_key, key_id, **options))

    def create_api_key(self, document: Document, **options: Unpack[CallOptions]) -> Document:
        """Makes a key for inference; what is not given is not limited. Its ``secret`` is told this once."""
        return self._portal.call(partial(self._operator.create_api_key, document, **options))

    def revoke_api_key(self, key_id: str, **options: Unpack[CallOptions]) -> Document:
        """Its next request is refused, and what it has in progress ends."""
        return self._portal.call(partial(self._operator.revoke_api_key, key_id, **options))

    def deployments(self, **options: Unpack[CallOptions]) -> tuple[Document, ...]:
        """Deployments in force: ``spec`` and ``generation``."""
        return self._portal.call(partial(self._operator.deployments, **options))

    def apply_deployment(
        self, name: str, spec: Document, *, generation: int | None = None, **options: Unpack[CallOptions]
    ) -> Document:
        """Creates or changes one, and tells its ``generation``; equal content changes nothing. With ``generation`` only
        that one is changed (0: only when new), else :class:`~lunanexa_client.errors.Conflict`."""
        apply = partial(self._operator.apply_deployment, name, spec, generation=generation, **options)
        return self._portal.call(apply)

    def remove_deployment(self, name: str, **options: Unpack[CallOptions]) -> Document:
        """Its replicas drain and stop."""
        return self._portal.call(partial(self._operator.remove_deployment, name, **options))

    def deployment(self, name: str, **options: Unpack[CallOptions]) -> Document:
        """One of them: ``spec``, ``generation``, and the ``status`` of its replicas."""
        return self._portal.call(partial(self._operator.deployment, name, **options))

    def plan_deployment(self, spec: Document, **options: Unpack[CallOptions]) -> Document:
        """What applying ``spec`` (with its ``deployment``) would change, and why which node can't take a replica."""
        return self._portal.call(partial(self._operator.plan_deployment, spec, **options))

    def scale_deployment(
        self, name: str, replicas: int, *, generation: int | None = None, **options: Unpack[CallOptions]
    ) -> Document:
        """Another number of replicas; those that stay run on. ``generation`` as in :meth:`apply_deployment`."""
        scale = partial(self._operator.scale_deployment, name, replicas, generation=generation, **options)
        return self._portal.call(scale)

    def nodes(self, **options: Unpack[CallOptions]) -> tuple[Document, ...]:
        """All nodes by name: state, directive, memory, and how much each does."""
        return self._portal.call(partial(self._operator.nodes, **options))

    def nodes_page(self, *, limit: int = 50, cursor: str | None = None, **options: Unpack[CallOptions]) -> Page:
        """One page of them; ``cursor`` is where the one before ended."""
        return self._portal.call(partial(self._operator.nodes_page, limit=limit, cursor=cursor, **options))

    def node(self, name: str, **options: Unpack[CallOptions]) -> Document:
        """One of them: every replica on it, what each has in progress, and where else it runs."""
        return self._portal.call(partial(self._operator.node, name, **options))

    def set_directive(
        self,
        name: str,
        directive: str,
        *,
        reason: str | None = None,
        within_ms: int | None = None,
        generation: int | None = None,
        **options: Unpack[CallOptions],
    ) -> Document:
        """What a node shall do: ``active``, ``cordon``, ``drain`` or ``retire``. Answers as :meth:`node`, at once: how
        far a drain is, tells :meth:`node`. ``within_ms``: how long that or a retirement may take, else ten minutes.
        With ``generation`` only that one of the node is changed."""
        direct = partial(
            self._operator.set_directive,
            name,
            directive,
            reason=reason,
            within_ms=within_ms,
            generation=generation,
            **options,
        )
        return self._portal.call(direct)

    def mint_token(
        self, name: str, *, again: bool = False, loopback: bool = False, **options: Unpack[CallOptions]
    ) -> Document:
        """An enrolment token for one node: its ``line`` is told this once, and is good once. ``again``: also for a node
        that is enrolled, else :class:`~lunanexa_client.errors.Conflict`. ``loopback``: for a node of the controller's
        own machine, which may do without a data listener."""
        return self._portal.call(partial(self._operator.mint_token, name, again=again, loopback=loopback, **options))

    def revoke_node(self, name: str, *, reason: str | None = None, **options: Unpack[CallOptions]) -> Document:
        """Voids a node's certificates and its signing key, at once; what it had is placed elsewhere. Answers as
        :meth:`node`. The same again changes nothing."""
        return self._portal.call(partial(self._operator.revoke_node, name, reason=reason, **options))

    def set_address(self, name: str, data_address: str | None, **options: Unpack[CallOptions]) -> Document:
        """``HOST:PORT`` at which gateways reach a node's data listener from now on; ``None``: it has none. Answers as
        :meth:`node`."""
        return self._portal.call(partial(self._operator.set_address, name, data_address, **options))

    def trust(self, **options: Unpack[CallOptions]) -> Document:
        """What all of the cluster trust; while a rotation is under way, its ``stage`` and the nodes in ``waiting``."""
        return self._portal.call(partial(self._operator.trust, **options))

    def rotate_trust(self, **options: Unpack[CallOptions]) -> Document:
        """Begins to exchange authority and signing key for new ones, which goes on by itself. Answers as :meth:`trust`;
        a rotation that is under way is not begun anew, one that was just over is."""
        return self._portal.call(partial(self._operator.rotate_trust, **options))

    def revocation_list(self, **options: Unpack[CallOptions]) -> str:
        """Signed lists of revoked certificates (CRL, PEM), one for each trusted authority."""
        return self._portal.call(partial(self._operator.revocation_list, **options))

    def drain(self, **options: Unpack[CallOptions]) -> Document:
        """Nothing new is admitted until the next start; tells how many are ``in_flight``. Idempotent."""
        return self._portal.call(partial(self._operator.drain, **options))

    def journal_page(self, query: PageQuery, **options: Unpack[CallOptions]) -> JournalPage:
        """One page of rows of journal and ledger, records to the byte."""
        return self._portal.call(partial(self._operator.journal_page, query, **options))

    def journal(self, query: PageQuery, **options: Unpack[CallOptions]) -> Iterator[Document]:
        """All rows that ``query`` asks for, page by page."""
        following: PageQuery | None = query
        while following is not None:
            page = self.journal_page(following, **options)
            yield from page.items
            following = None if page.next_cursor is None else attrs.evolve(following, cursor=page.next_cursor)

    def journal_row(self, sequence: int, **options: Unpack[CallOptions]) -> Document:
        """One row."""
        return self._portal.call(partial(self._operator.journal_row, sequence, **options))

    def journal_head(self, **options: Unpack[CallOptions]) -> Document:
        """The last sequence, the epoch that wrote it, the last hash of each chain."""
        return self._portal.call(partial(self._operator.journal_head, **options))

    def journal_state(self, **options: Unpack[CallOptions]) -> Document:
        """The digest of the live state, and after which row it is."""
        return self._portal.call(partial(self._operator.journal_state, **options))

    def recovery(self, **options: Unpack[CallOptions]) -> Document:
        """Whether and why the store is being recovered, and the ``plan``."""
        return self._portal.call(partial(self._operator.recovery, **options))

    def rebase(self, plan: str, **options: Unpack[CallOptions]) -> Document:
        """The go for the plan of that ``digest``: recovery ends."""
        return self._portal.call(partial(self._operator.rebase, plan, **options))
