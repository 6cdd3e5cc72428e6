"""The operator face: the routes of ``/admin/v1``, which run the service. docs/http-api.md has the documents."""

from collections.abc import AsyncIterator
from typing import Final, Unpack
from urllib.parse import urlencode

import attrs

from lunanexa_client.answers import Answer, Document, Page, object_of, page_of
from lunanexa_client.asking import Asker, Question, segment
from lunanexa_client.errors import ProtocolError
from lunanexa_client.settings import CallOptions
from lunanexa_core.journal_query import PAGE_ROWS_MAX, PageQuery, ReceiptQuery

PEM: Final = "application/x-pem-file"
_ROOT: Final = "/admin/v1"


@attrs.frozen
class OperatorPage:
    """A part of a list, at times short or empty. ``next_cursor`` is the query's ``cursor`` of what follows; ``None``:
    that was all."""

    items: tuple[Document, ...]
    next_cursor: int | None


@attrs.frozen
class JournalPage(OperatorPage):
    """Rows of journal and ledger; ``head`` is the last sequence at that time."""

    head: int


class AsyncOperator:
    """Reached as ``AsyncClient.operator``. The client's key must be the operator token; one of the role auditor reads
    journal and receipts. Calls take and raise what those of the client do."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def status(self, **options: Unpack[CallOptions]) -> Document:
        """Everything on one page: nodes, deployments and their replicas, queues, usage, the last receipts."""
        return await self._read("/status", options)

    async def requests(self, *, limit: int = 50, **options: Unpack[CallOptions]) -> Document:
        """Requests of all keys: ``open``, and ``ended``; the newest ``limit`` of each."""
        return await self._read(f"/requests?limit={limit}", options)

    async def explain(self, workload_id: str, **options: Unpack[CallOptions]) -> Document:
        """One request, and why it went where it went."""
        return await self._read(f"/requests/{segment(workload_id)}", options)

    async def receipts_page(self, query: ReceiptQuery, **options: Unpack[CallOptions]) -> OperatorPage:
        """One page of receipts of all keys, the newest first."""
        return _page(await self._get(_with_query("/receipts", query), options), query)

    async def receipts(self, query: ReceiptQuery, **options: Unpack[CallOptions]) -> AsyncIterator[Document]:
        """All receipts that ``query`` asks for, page by page."""
        following: ReceiptQuery | None = query
        while following is not None:
            page = await self.receipts_page(following, **options)
            for receipt in page.items:
                yield receipt
            following = None if page.next_cursor is None else attrs.evolve(following, cursor=page.next_cursor)

    async def api_keys(self, **options: Unpack[CallOptions]) -> tuple[Document, ...]:
        """Keys in force: limits, what is left of them, what was used."""
        return await self._list("/keys", options)

    async def api_key(self, key_id: str, **options: Unpack[CallOptions]) -> Document:
        """One of them."""
        return await self._read(f"/keys/{segment(key_id)}", options)

    async def create_api_key(self, document: Document, **options: Unpack[CallOptions]) -> Document:
        """Makes a key for inference; what is not given is not limited. Its ``secret`` is told this once."""
        return await self._do("POST", "/keys", options, document)

    async def revoke_api_key(self, key_id: str, **options: Unpack[CallOptions]) -> Document:
        """Its next request is refused, and what it has in progress ends."""
        return await self._do("DELETE", f"/keys/{segment(key_id)}", options)

    async def deployments(self, **options: Unpack[CallOptions]) -> tuple[Document, ...]:
        """Deployments in force: ``spec`` and ``generation``."""
        return await self._list("/deployments", options)

    async def apply_deployment(
        self, name: str, spec: Document, *, generation: int | None = None, **options: Unpack[CallOptions]
    ) -> Document:
        """Creates or changes one, and tells its ``generation``; equal content changes nothing. With ``generation`` only
        that one is changed (0: only when new), else :class:`~lunanexa_client.errors.Conflict`."""
        # With a fence, the first one's success would be told as the second one's conflict.
        return await self._do(
            "PUT",
            f"/deployments/{segment(name)}",
            _fenced(options, generation),
            spec,
            repeatable=generation is None,
        )

    async def remove_deployment(self, name: str, **options: Unpack[CallOptions]) -> Document:
        """Its replicas drain and stop."""
        return await self._do("DELETE", f"/deployments/{segment(name)}", options)

    async def deployment(self, name: str, **options: Unpack[CallOptions]) -> Document:
        """One of them: ``spec``, ``generation``, and the ``status`` of its replicas."""
        return await self._read(f"/deployments/{segment(name)}", options)

    async def plan_deployment(self, spec: Document, **options: Unpack[CallOptions]) -> Document:
        """What applying ``spec`` (with its ``deployment``) would change, and why which node can't take a replica."""
        return await self._do("POST", "/deployments:plan", options, spec, repeatable=True)

    async def scale_deployment(
        self, name: str, replicas: int, *, generation: int | None = None, **options: Unpack[CallOptions]
    ) -> Document:
        """Another number of replicas; those that stay run on. ``generation`` as in :meth:`apply_deployment`."""
        target, document = f"/deployments/{segment(name)}/replicas", {"replicas": replicas}
        return await self._do("PUT", target, _fenced(options, generation), document, repeatable=generation is None)

    async def nodes(self, **options: Unpack[CallOptions]) -> tuple[Document, ...]:
        """All nodes by name: state, directive, memory, and how much each does."""
        found: list[Document] = []
        cursor: str | None = None
        while True:
            page = await self.nodes_page(limit=PAGE_ROWS_MAX, cursor=cursor, **options)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return tuple(found)

    async def nodes_page(self, *, limit: int = 50, cursor: str | None = None, **options: Unpack[CallOptions]) -> Page:
        """One page of them; ``cursor`` is where the one before ended."""
        query = {"limit": str(limit)} | ({} if cursor is None else {"cursor": cursor})
        return page_of((await self._get(f"/nodes?{urlencode(query)}", options)).body, after=cursor)

    async def node(self, name: str, **options: Unpack[CallOptions]) -> Document:
        """One of them: every replica on it, what each has in progress, and where else it runs."""
        return await self._read(f"/nodes/{segment(name)}", options)

    async def set_directive(
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
        target = f"/nodes/{segment(name)}/directive"
        document: dict[str, str | int | None] = {"directive": directive, "reason": reason}
        if within_ms is not None:
            document["within_ms"] = within_ms
        return await self._do("PUT", target, _fenced(options, generation), document, repeatable=generation is None)

    async def mint_token(
        self, name: str, *, again: bool = False, loopback: bool = False, **options: Unpack[CallOptions]
    ) -> Document:
        """An enrolment token for one node: its ``line`` is told this once, and is good once. ``again``: also for a node
        that is enrolled, else :class:`~lunanexa_client.errors.Conflict`. ``loopback``: for a node of the controller's
        own machine, which may do without a data listener."""
        document = {"again": again, "loopback": loopback}
        return await self._do("POST", f"/nodes/{segment(name)}/token", options, document)

    async def revoke_node(self, name: str, *, reason: str | None = None, **options: Unpack[CallOptions]) -> Document:
        """Voids a node's certificates and its signing key, at once; what it had is placed elsewhere. Answers as
        :meth:`node`. The same again changes nothing."""
        target = f"/nodes/{segment(name)}/revoke"
        return await self._do("POST", target, options, {"reason": reason}, repeatable=True)

    async def set_address(self, name: str, data_address: str | None, **options: Unpack[CallOptions]) -> Document:
        """``HOST:PORT`` at which gateways reach a node's data listener from now on; ``None``: it has none. Answers as
        :meth:`node`."""
        target = f"/nodes/{segment(name)}/address"
        return await self._do("PUT", target, options, {"data_address": data_address}, repeatable=True)

    async def trust(self, **options: Unpack[CallOptions]) -> Document:
        """What all of the cluster trust; while a rotation is under way, its ``stage`` and the nodes in ``waiting``."""
        return await self._read("/trust", options)

    async def rotate_trust(self, **options: Unpack[CallOptions]) -> Document:
        """Begins to exchange authority and signing key for new ones, which goes on by itself. Answers as :meth:`trust`;
        a rotation that is under way is not begun anew, one that was just over is."""
        return await self._do("POST", "/trust/rotate", options)

    async def revocation_list(self, **options: Unpack[CallOptions]) -> str:
        """Signed lists of revoked certificates (CRL, PEM), one for each trusted authority."""
        question = Question(method="GET", target=_ROOT + "/trust/crl", options=options, accept=PEM, repeatable=True)
        _, body = await self._asker.whole(question)
        if not body.startswith(b"-----BEGIN X509 CRL-----") or not body.isascii():
            raise ProtocolError("the answer is no revocation list")
        return body.decode()

    async def drain(self, **options: Unpack[CallOptions]) -> Document:
        """Nothing new is admitted until the next start; tells how many are ``in_flight``. Idempotent."""
        return await self._do("POST", "/drain", options, repeatable=True)

    async def journal_page(self, query: PageQuery, **options: Unpack[CallOptions]) -> JournalPage:
        """One page of rows of journal and ledger, records to the byte."""
        answer = await self._get(_with_query("/journal", query), options)
        page, head = _page(answer, query), object_of(answer).get("head")
        if not isinstance(head, int):
            raise ProtocolError("the page does not tell where the journal ends")
        return JournalPage(page.items, page.next_cursor, head)

    async def journal(self, query: PageQuery, **options: Unpack[CallOptions]) -> AsyncIterator[Document]:
        """All rows that ``query`` asks for, page by page."""
        following: PageQuery | None = query
        while following is not None:
            page = await self.journal_page(following, **options)
            for row in page.items:
                yield row
            following = None if page.next_cursor is None else attrs.evolve(following, cursor=page.next_cursor)

    async def journal_row(self, sequence: int, **options: Unpack[CallOptions]) -> Document:
        """One row."""
        return await self._read(f"/journal/rows/{sequence}", options)

    async def journal_head(self, **options: Unpack[CallOptions]) -> Document:
        """The last sequence, the epoch that wrote it, the last hash of each chain."""
        return await self._read("/journal/head", options)

    async def journal_state(self, **options: Unpack[CallOptions]) -> Document:
        """The digest of the live state, and after which row it is."""
        return await self._read("/journal/state", options)

    async def recovery(self, **options: Unpack[CallOptions]) -> Document:
        """Whether and why the store is being recovered, and the ``plan``."""
        return await self._read("/recovery", options)

    async def rebase(self, plan: str, **options: Unpack[CallOptions]) -> Document:
        """The go for the plan of that ``digest``: recovery ends.
        :class:`~lunanexa_client.errors.Conflict`: the plan is another by now, or there is none."""
        return await self._do("POST", "/recovery:rebase", options, {"plan": plan})

    async def _get(self, path: str, options: CallOptions) -> Answer:
        return await self._asker.ask(Question(method="GET", target=_ROOT + path, options=options, repeatable=True))

    async def _read(self, path: str, options: CallOptions) -> Document:
        return object_of(await self._get(path, options))

    async def _list(self, path: str, options: CallOptions) -> tuple[Document, ...]:
        return page_of((await self._get(path, options)).body, after=None).items

    async def _do(
        self,
        method: str,
        path: str,
        options: CallOptions,
        document: Document | None = None,
        *,
        repeatable: bool = False,
    ) -> Document:
        question = Question(
            method=method, target=_ROOT + path, document=document, options=options, repeatable=repeatable
        )
        return object_of(await self._asker.ask(question))


def _fenced(options: CallOptions, generation: int | None) -> CallOptions:
    if generation is None:
        return options
    return {**options, "headers": {**options.get("headers", {}), "if-match": str(generation)}}


def _with_query(path: str, query: PageQuery | ReceiptQuery) -> str:
    said = attrs.asdict(query, value_serializer=lambda _, __, value: getattr(value, "value", value))
    if isinstance(query, PageQuery):
        said["order"] = "newest" if said.pop("newest_first") else "oldest"
    return f"{path}?{urlencode({name: value for name, value in said.items() if value is not None})}"


def _page(answer: Answer, query: PageQuery | ReceiptQuery) -> OperatorPage:
    page = page_of(answer.body, after=None if query.cursor is None else str(query.cursor))
    if page.next_cursor is None:
        return OperatorPage(page.items, None)
    if not (page.next_cursor.isascii() and page.next_cursor.isdigit() and len(page.next_cursor) <= 15):
        raise ProtocolError("the list's next cursor is no number")
    return OperatorPage(page.items, int(page.next_cursor))
