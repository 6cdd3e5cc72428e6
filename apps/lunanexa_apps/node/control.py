"""The node plane from the node's side: its verbs over HTTP and mutual TLS, bodies as they are signed."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Final, TypeVar

import attrs
import trio

from lunanexa_apps.codec import CodecError, decode, encode
from lunanexa_apps.node.circle import Circle
from lunanexa_apps.node.settings import NodeSettings
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.identity.names import Party, any_of
from lunanexa_core.ids import ClusterId
from lunanexa_core.outcomes import Outcome
from lunanexa_core.southbound.controllers import parse_controller_url
from lunanexa_core.southbound.documents import DocumentSeen, SignedDocument
from lunanexa_core.southbound.enrolment import Authorities, Challenge, Enrolled, Enrolment, Renewal
from lunanexa_core.southbound.heartbeat import Heartbeat, HeartbeatAnswer
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.http_client import Headers, HttpClient, HttpRequest, TlsPeer
from lunanexa_ports.signing import Signer

KEY_ID: Final = b"x-lunanexa-key-id"
SIGNATURE: Final = b"x-lunanexa-signature"
_WAIT_DIGITS_MAX: Final = 9
SERVER_NAME: Final = "node-plane.lunanexa"
MAX_ANSWER_BYTES: Final = 4 << 20
CONNECT_MS: Final = 5_000
_URL_MAX: Final = 300
_PREFIX: Final = "/node/v1"
_ANYBODY: Final = TlsPeer(identity=None, server_name=SERVER_NAME, anonymous=True)
T = TypeVar("T")


@attrs.frozen
class ControlRefusal:
    """The controller answered, and says no. ``code`` and ``message`` are its error's, where the answer has one."""

    status: int
    code: str | None
    message: str | None = None
    again_ms: int | None = None
    """In how long a repetition makes sense, where the controller says so."""

    def __str__(self) -> str:
        return " ".join(str(part) for part in (self.status, self.code, self.message) if part is not None)

    @property
    def wants_document(self) -> bool:
        """Whether the controller must first see the document that this node says to follow."""
        return self.code == Outcome.DOCUMENT_WANTED.value

    @property
    def stranger(self) -> bool:
        """Whether the controller does not take this node for one of its own: its certificate, or all of it."""
        return self.status in (401, 403, 404) and self.code != Outcome.NODE_RETIRED.value


@attrs.frozen(kw_only=True)
class _Question:
    method: str
    target: str
    tls: TlsPeer
    document: SignedDocument | None = None
    wait_ms: int = 0


class ControlChannel:
    """One node's way to the controller that leads. Every verb asks each of them at most once. It raises
    ``PortUnavailable`` when the last one can't be reached, ``PortFault`` when what answers speaks another language.

    ``cluster`` is whose controllers must answer; nothing but :meth:`authorities` is asked before it is known."""

    def __init__(self, http: HttpClient, signer: Signer, settings: NodeSettings, *, told_only: bool = False) -> None:
        """``told_only``: no other controller is asked than those of the settings."""
        self.cluster: ClusterId | None = None
        self._http = http
        self._signer = signer
        self._settings = settings
        self._circle = Circle(settings.controllers)
        self._told_only = told_only

    def learn(self, urls: Sequence[str]) -> None:
        """The controllers that the followed document tells of; what is no URL of one is passed over."""
        found = (parse_controller_url(url) for url in urls)
        self._circle.learn([address for address in found if address is not None])

    def patience_ms(self) -> int:
        """The longest pause before all that are known are asked again."""
        return self._settings.patience_ms(alone=self._is_alone)

    @property
    def _is_alone(self) -> bool:
        return len(self._circle.known) == 1

    async def authorities(self) -> Authorities | ControlRefusal:
        """What whoever answers there says of itself."""
        answer = await self._ask(_Question(method="GET", target=f"{_PREFIX}/authorities", tls=_ANYBODY))
        return answer.decoded(Authorities) if answer.status == 200 else answer.refusal()

    async def enrol(self, enrolment: Enrolment) -> Enrolled | ControlRefusal:
        """Introduces this node's signing key. The server is verified; nothing of ours is shown but the token."""
        return await self._admitted("enrol", encode(enrolment), anonymous=True)

    async def challenge(self) -> Challenge | ControlRefusal:
        """What a renewal without a certificate must answer."""
        answer = await self._ask(self._question("POST", "challenge", anonymous=True))
        return answer.decoded(Challenge) if answer.status == 200 else answer.refusal()

    async def renew(self, renewal: Renewal) -> Enrolled | ControlRefusal:
        """Without a certificate if it answers a challenge."""
        return await self._admitted("renew", encode(renewal), anonymous=renewal.challenge is not None)

    async def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatAnswer | ControlRefusal:
        """Reports; the answer must be to this very heartbeat."""
        signed = self._signer.sign(encode(heartbeat))
        answer = await self._ask(self._question("PUT", "heartbeat", signed))
        if answer.status != 200:
            return answer.refusal()
        word = answer.decoded(HeartbeatAnswer)
        if (word.boot, word.sequence) != (heartbeat.boot, heartbeat.sequence):
            raise PortFault("the controller answered another heartbeat")
        return word

    async def show(self, document: SignedDocument) -> DocumentSeen | ControlRefusal:
        """Hands in a document that this node follows, as the controller signed it."""
        answer = await self._ask(self._question("PUT", "document", document))
        return answer.decoded(DocumentSeen) if answer.status == 200 else answer.refusal()

    async def desired(
        self, after: tuple[int, int], wait_ms: int | None = None
    ) -> SignedDocument | ControlRefusal | None:
        """The next document after ``after`` = (epoch, generation); ``None`` when there was none within ``wait_ms``
        (by default as the settings say)."""
        wait_ms = self._settings.desired_wait_ms if wait_ms is None else wait_ms
        target = f"desired?after={after[0]}.{after[1]}&wait_ms={wait_ms}"
        answer = await self._ask(self._question("GET", target, wait_ms=wait_ms))
        match answer.status:
            case 200:
                return answer.document()
            case 204:
                return None
            case _:
                return answer.refusal()

    async def _admitted(self, verb: str, payload: bytes, *, anonymous: bool) -> Enrolled | ControlRefusal:
        answer = await self._ask(self._question("POST", verb, self._signer.sign(payload), anonymous=anonymous))
        return answer.decoded(Enrolled) if answer.status == 200 else answer.refusal()

    def _question(
        self,
        method: str,
        verb: str,
        document: SignedDocument | None = None,
        *,
        wait_ms: int = 0,
        anonymous: bool = False,
    ) -> _Question:
        assert self.cluster is not None, "nobody is trusted yet"
        server = any_of(self.cluster, Party.CONTROLLER)
        return _Question(
            method=method,
            target=f"{_PREFIX}/{self._settings.node}/{verb}",
            tls=TlsPeer(identity=server, server_name=SERVER_NAME, anonymous=anonymous),
            document=document,
            wait_ms=wait_ms,
        )

    async def _ask(self, question: _Question) -> "_Answer":
        # Who need not prove to be a controller may name nobody.
        heard = question.tls.identity is not None and not self._told_only
        return await self._circle.ask(
            partial(self._ask_one, question),
            lambda answer: answer.elsewhere,
            lambda answer: answer.leader if heard else None,
        )

    async def _ask_one(self, question: _Question, controller: EngineAddress) -> "_Answer":
        headers: Headers = ()
        if question.document is not None:
            headers = (
                (b"content-type", b"application/json"),
                (KEY_ID, question.document.key_id.encode()),
                (SIGNATURE, question.document.signature.hex().encode()),
            )
        try_ms = self._settings.try_ms(alone=self._is_alone)
        request = HttpRequest(
            method=question.method,
            host=controller.host,
            port=controller.port,
            target=question.target,
            headers=headers,
            body=b"" if question.document is None else question.document.payload,
            connect_timeout_ms=min(CONNECT_MS, try_ms),
            head_timeout_ms=question.wait_ms + try_ms,
            tls=question.tls,
        )
        with trio.move_on_after((question.wait_ms + 2 * try_ms) / 1_000):
            async with self._http.exchange(request) as response:
                return _Answer(response.status, response.headers, await response.read(MAX_ANSWER_BYTES))
        raise PortUnavailable("the controller's answer did not end in time")


@attrs.frozen
class _Answer:
    status: int
    headers: Headers
    body: bytes

    @property
    def elsewhere(self) -> bool:
        """Whether it says nothing of the node: another controller leads, or this one can't serve now."""
        return self.status == 503

    @property
    def leader(self) -> EngineAddress | None:
        """Where the controller that leads is to be found, as this one says."""
        try:
            url = json.loads(self.body)["error"]["leader_node_url"]
        except (ValueError, KeyError, TypeError):
            return None
        return parse_controller_url(url) if isinstance(url, str) and len(url) <= _URL_MAX else None

    def decoded(self, kind: type[T]) -> T:
        try:
            return decode(kind, self.body)
        except CodecError as error:
            raise PortFault(f"the controller's answer is no {kind.__name__}: {error}") from error

    def document(self) -> SignedDocument:
        signed = dict(self.headers)
        try:
            key_id = signed[KEY_ID].decode("ascii")
            signature = bytes.fromhex(signed[SIGNATURE].decode("ascii"))
        except (KeyError, ValueError) as error:
            raise PortFault("the controller's document came without a signature") from error
        return SignedDocument(payload=self.body, key_id=key_id, signature=signature)

    def refusal(self) -> ControlRefusal:
        try:
            error = json.loads(self.body)["error"]
            code, message = error["code"], error.get("message")
        except (ValueError, KeyError, TypeError, AttributeError):
            code = message = None
        return ControlRefusal(
            self.status,
            code if isinstance(code, str) else None,
            message if isinstance(message, str) else None,
            self._again_ms(),
        )

    def _again_ms(self) -> int | None:
        told = dict(self.headers).get(b"retry-after-ms", b"")
        return int(told) if told.isdigit() and len(told) <= _WAIT_DIGITS_MAX else None
