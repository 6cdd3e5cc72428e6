"""A small controller that speaks the node plane over mutual TLS: a double for the agent's tests alone. It signs what it
is told to, lets in who has its token, and notes what it hears."""

from collections.abc import Callable

import attrs
import trio

from lunanexa_apps.codec import decode, encode
from lunanexa_core.identity.certificate import VALID_MS, PeerCertificate, terms_at
from lunanexa_core.identity.names import Identity, controller_identity, node_identity
from lunanexa_core.identity.token import EnrolmentToken
from lunanexa_core.identity.trust import SigningKey, TrustSet, first_trust
from lunanexa_core.ids import ClusterId, HolderId, NodeId
from lunanexa_core.southbound.documents import DesiredAssignment, DesiredState, Directive, DocumentSeen, SignedDocument
from lunanexa_core.southbound.enrolment import Authorities, Challenge, Enrolled, Enrolment, Renewal
from lunanexa_core.southbound.heartbeat import Heartbeat, HeartbeatAnswer, ReplicaReport, ReplicaState
from lunanexa_ports.asgi import Receive, Scope, Send
from lunanexa_ports.clock import Clock
from lunanexa_ports.credentials import Credentials
from lunanexa_ports.fleet_keys import FleetKeys
from lunanexa_ports.signing import Signer, Verifier

NODE = NodeId("node-1")
CLUSTER = ClusterId("cluster-1")
PLANE = "/node/v1"
_CODE = '{{"error": {{"code": "{}", "message": "as the test wants it"}}}}'


async def answer(send: Send, status: int, body: bytes = b"", headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, status: int, code: str, *headers: tuple[bytes, bytes]) -> None:
    await answer(send, status, _CODE.format(code).encode(), headers)


async def whole_body(receive: Receive) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body


class TinyController:
    """Signs the document that it is given."""

    def __init__(self, keys: FleetKeys, verifier: Verifier, clock: Clock) -> None:
        self.keys = keys
        self.verifier = verifier
        self.clock = clock
        authority, signer = next(iter(keys.authorities().values())), next(iter(keys.signers().values()))
        self.trust: TrustSet = first_trust(authority, SigningKey(key_id=signer.key_id, public_key=signer.public_key))
        self.cluster = CLUSTER
        self.document = DesiredState(cluster=CLUSTER, node=NODE, epoch=1, generation=0)
        self.offered: SignedDocument | None = None
        self.heartbeats: list[Heartbeat] = []
        self.enrolments: list[Enrolment] = []
        self.renewals: list[Renewal] = []
        self.asked: list[str] = []
        """Each verb that reached it."""
        self.known_key: str | None = None
        self.data_address: str | None = None
        self.revoked: set[str] = set()
        """Serials that count no more."""
        self.unknown = False
        """Knows of no such node, and of no token."""
        self.wants: bool = False
        """Hears nothing before it was shown the document that it signed last."""
        self.shown: list[SignedDocument] = []
        self.admits_from_ms = 0
        """Its time until which it says to wait to whom it would let in."""
        self.deaf = False
        """Refuses heartbeats, and nothing else."""
        self.retired = False
        """Refuses heartbeats for good, and still tells what shall be."""
        self.valid_ms = VALID_MS
        self.lease_ms = 10_000
        self.serials: list[str] = []
        self.named: Callable[[str], str] = str
        """Whom a certificate names, of who should be named."""
        self.answers_late = 0
        """So many heartbeats are answered with the answer to the one before."""
        self._news = trio.Event()
        self._tokens: dict[str, EnrolmentToken] = {}

    @property
    def signer(self) -> Signer:
        return self.keys.signers()[self.trust.signing.key_id]

    def mint(self, node: NodeId = NODE) -> EnrolmentToken:
        """A token that lets that node in."""
        number, authority = len(self._tokens) + 1, self.trust.issuing.fingerprint
        token = EnrolmentToken(
            node=node,
            token=f"tok_{authority[:8]}_{number}",
            secret=f"{number:043}",
            authority=authority,
            loopback=True,
        )
        self._tokens[token.token] = token
        return token

    def serve_as(
        self,
        credentials: Credentials,
        host: str = "controller",
        *,
        party: Callable[[ClusterId, HolderId], Identity] = controller_identity,
    ) -> None:
        """Has ``credentials`` show a certificate of this cluster's controllers, or of another ``party``."""
        identity = party(self.cluster, HolderId(host)).uri
        credentials.trust([one.certificate for one in self.trust.authorities])
        credentials.accept(self.issue(identity, credentials.request()))

    def issue(self, identity: str, request: bytes) -> str:
        """A certificate that is good for ``valid_ms``."""
        serial = f"{len(self.serials) + 0x10:x}"
        self.serials.append(serial)
        wall_ms = self.clock.now().wall_ms
        terms = attrs.evolve(
            terms_at(self.named(identity), serial, wall_ms), not_after_s=(wall_ms + self.valid_ms) // 1_000
        )
        chain = self.keys.issue(self.trust.issuing.fingerprint, request, terms)
        assert chain is not None, "the request holds no key"
        return chain

    def desire(self, *assignments: DesiredAssignment, directive: Directive = Directive.ACTIVE) -> None:
        self.document = attrs.evolve(
            self.document, generation=self.document.generation + 1, assignments=assignments, directive=directive
        )
        self.offer(self.signer.sign(encode(self.document)))

    def turn_to(self, trust: TrustSet, signer: Signer | None = None) -> None:
        """From now on this is trusted; the document that says so is signed as the set says, or by ``signer``."""
        self.trust = trust
        self.document = attrs.evolve(self.document, generation=self.document.generation + 1, trust=trust)
        self.offer((signer or self.signer).sign(encode(self.document)))

    def offer(self, document: SignedDocument) -> None:
        """Whatever it is, it is given to whoever asks."""
        self.offered = document
        self._wake()

    def report(self, name: str = "as_1") -> ReplicaReport | None:
        """The newest word on one assignment."""
        if not self.heartbeats:
            return None
        return next((one for one in self.heartbeats[-1].replicas if one.assignment == name), None)

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits for questions until one makes ``condition`` true."""
        while not condition():
            await self._news.wait()

    async def until_state(
        self, state: ReplicaState, name: str = "as_1", generation: int | None = None
    ) -> ReplicaReport:
        def reached() -> bool:
            report = self.report(name)
            return report is not None and report.state is state and generation in (None, report.generation)

        await self.until(reached)
        report = self.report(name)
        assert report is not None
        return report

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        if scope["type"] != "http":
            return
        peer: PeerCertificate | None = scope["extensions"]["tls"]["peer"]
        headers, verb = dict(scope["headers"]), scope["path"].rpartition("/")[2]
        assert scope["path"] in (f"{PLANE}/authorities", f"{PLANE}/{NODE}/{verb}")
        self.asked.append(verb)
        match verb:
            case "authorities":
                roots = tuple(one.certificate for one in self.trust.authorities)
                await answer(send, 200, encode(Authorities(cluster=self.cluster, certificates=roots)))
            case "enrol":
                await self._enrol(self._signed(headers, await whole_body(receive)), send)
            case "challenge":
                await answer(send, 200, encode(Challenge(challenge=f"ch_{len(self.renewals)}")))
            case "renew":
                await self._renew(peer, self._signed(headers, await whole_body(receive)), send)
            case _ if not self._admits(peer):
                await refuse(send, 403, "permission_denied")
            case "heartbeat":
                await self._hear(self._signed(headers, await whole_body(receive)), send)
            case "document":
                self.shown.append(self._signed(headers, await whole_body(receive)))
                self.wants = self.wants and self.shown[-1] != self.offered
                await answer(send, 200, encode(DocumentSeen(epoch=1, generation=1)))
            case "desired":
                await self._tell(scope["query_string"].decode(), send)
            case _:
                await answer(send, 404)
        self._wake()

    def _admits(self, peer: PeerCertificate | None) -> bool:
        own = node_identity(self.cluster, NODE).uri
        return peer is not None and peer.identity == own and peer.serial not in self.revoked and not self.unknown

    def _signed(self, headers: dict[bytes, bytes], payload: bytes) -> SignedDocument:
        signature = bytes.fromhex(headers[b"x-lunanexa-signature"].decode())
        return SignedDocument(payload=payload, key_id=headers[b"x-lunanexa-key-id"].decode(), signature=signature)

    async def _enrol(self, document: SignedDocument, send: Send) -> None:
        enrolment = decode(Enrolment, document.payload)
        assert self.verifier.verify(document, {document.key_id: enrolment.public_key})
        self.enrolments.append(enrolment)
        known = self._tokens.get(enrolment.token)
        right = known is not None and (known.node, known.secret) == (enrolment.node, enrolment.secret)
        if not right or self.unknown:
            await refuse(send, 403, "permission_denied")
            return
        wait_ms = self.admits_from_ms - self.clock.now().mono_ms
        if wait_ms > 0:
            await refuse(send, 429, "rate_limited", (b"retry-after-ms", b"%d" % wait_ms))
            return
        self.known_key, self.data_address = enrolment.public_key, enrolment.data_address
        await self._admit(enrolment.node, enrolment.certificate_request, send)

    async def _renew(self, peer: PeerCertificate | None, document: SignedDocument, send: Send) -> None:
        renewal = decode(Renewal, document.payload)
        self.renewals.append(renewal)
        challenged = renewal.challenge == f"ch_{len(self.renewals) - 1}"
        if self.unknown or self.known_key is None or not (challenged or self._admits(peer)):
            await refuse(send, 403, "permission_denied")
            return
        assert self.verifier.verify(document, {document.key_id: self.known_key})
        await self._admit(renewal.node, renewal.certificate_request, send)

    async def _admit(self, node: NodeId, request: str, send: Send) -> None:
        chain = self.issue(node_identity(self.cluster, node).uri, bytes.fromhex(request))
        enrolled = Enrolled(
            cluster=self.cluster,
            epoch=self.document.epoch,
            trust=self.trust,
            certificate=chain,
            valid_ms=self.valid_ms,
            data_address=self.data_address,
        )
        await answer(send, 200, encode(enrolled))

    async def _hear(self, document: SignedDocument, send: Send) -> None:
        if self.known_key is None or self.deaf:
            await refuse(send, 403, "permission_denied")
            return
        if self.retired:
            await refuse(send, 403, "node_retired")
            return
        if self.wants:
            await refuse(send, 409, "document_wanted")
            return
        assert self.verifier.verify(document, {document.key_id: self.known_key})
        heartbeat = decode(Heartbeat, document.payload)
        earlier = [one.sequence for one in self.heartbeats if one.boot == heartbeat.boot]
        assert not earlier or heartbeat.sequence > max(earlier)
        self.heartbeats.append(heartbeat)
        late = 1 if self.answers_late else 0
        self.answers_late -= late
        word = HeartbeatAnswer(
            boot=heartbeat.boot,
            sequence=heartbeat.sequence - late,
            epoch=self.document.epoch,
            generation=self.document.generation,
            lease_ms=self.lease_ms,
            wall_ms=self.clock.now().wall_ms,
        )
        await answer(send, 200, encode(word))

    async def _tell(self, query: str, send: Send) -> None:
        after_text, wait_text = (part.partition("=")[2] for part in query.split("&"))
        epoch, generation = map(int, after_text.split("."))
        with trio.move_on_after(int(wait_text) / 1_000):
            while self.offered is None or not self._newer(epoch, generation):
                await self._news.wait()
        if self.offered is None or not self._newer(epoch, generation):
            await answer(send, 204)
            return
        offered = self.offered
        signature = offered.signature.hex().encode()
        head = ((b"x-lunanexa-key-id", offered.key_id.encode()), (b"x-lunanexa-signature", signature))
        await answer(send, 200, offered.payload, head)

    def _newer(self, epoch: int, generation: int) -> bool:
        """What is no document of ours is given at any time."""
        assert self.offered is not None
        honest = self.offered.payload == encode(self.document)
        return not honest or self.document.order > (epoch, generation)
