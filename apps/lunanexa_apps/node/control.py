"""The node plane from the node's side: three verbs over HTTP, bodies as they are signed."""

import json
from functools import partial
from typing import Final, TypeVar

import attrs
import trio

from lunanexa_apps.codec import CodecError, decode, encode
from lunanexa_apps.node.circle import Circle
from lunanexa_apps.node.settings import NodeSettings
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.outcomes import Outcome
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_core.southbound.heartbeat import Enrolled, Enrolment, Heartbeat, HeartbeatAnswer
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.http_client import Headers, HttpClient, HttpRequest
from lunanexa_ports.signing import Signer

KEY_ID: Final = b"x-lunanexa-key-id"
SIGNATURE: Final = b"x-lunanexa-signature"
MAX_ANSWER_BYTES: Final = 4 << 20
CONNECT_MS: Final = 5_000
T = TypeVar("T")


@attrs.frozen
class ControlRefusal:
    """The controller answered, and says no. ``code`` is its outcome's, where the answer has one."""

    status: int
    code: str | None

    @property
    def unknown_node(self) -> bool:
        """Whether enrolling (again) may mend it: the controller does not know this node's signing key."""
        return self.status in (403, 404) and self.code != Outcome.NODE_RETIRED.value


class ControlChannel:
    """One node's way to the controller that leads. Every verb asks each of them at most once. It raises
    ``PortUnavailable`` when the last one can't be reached, ``PortFault`` when what answers speaks another language."""

    def __init__(self, http: HttpClient, signer: Signer, settings: NodeSettings) -> None:
        self._http = http
        self._signer = signer
        self._settings = settings
        self._circle = Circle(settings.controllers)

    async def enrol(self) -> Enrolled | ControlRefusal:
        """Introduces this node's signing key; idempotent."""
        enrolment = Enrolment(
            node=self._settings.node, public_key=self._signer.public_key, agent_version=self._settings.version
        )
        answer = await self._exchange("POST", "enrol", self._signer.sign(encode(enrolment)))
        return answer.decoded(Enrolled) if answer.status == 200 else answer.refusal()

    async def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatAnswer | ControlRefusal:
        """Reports; the answer must be to this very heartbeat."""
        answer = await self._exchange("PUT", "heartbeat", self._signer.sign(encode(heartbeat)))
        if answer.status != 200:
            return answer.refusal()
        word = answer.decoded(HeartbeatAnswer)
        if (word.boot, word.sequence) != (heartbeat.boot, heartbeat.sequence):
            raise PortFault("the controller answered another heartbeat")
        return word

    async def desired(self, after: tuple[int, int]) -> SignedDocument | ControlRefusal | None:
        """The next document after ``after`` = (epoch, generation); ``None`` when there was none for a while."""
        target = f"desired?after={after[0]}.{after[1]}&wait_ms={self._settings.desired_wait_ms}"
        answer = await self._exchange("GET", target, wait_ms=self._settings.desired_wait_ms)
        match answer.status:
            case 200:
                return answer.document()
            case 204:
                return None
            case _:
                return answer.refusal()

    async def _exchange(
        self, method: str, verb: str, document: SignedDocument | None = None, *, wait_ms: int = 0
    ) -> "_Answer":
        return await self._circle.ask(
            partial(self._ask_one, method, verb, document, wait_ms), lambda answer: answer.elsewhere
        )

    async def _ask_one(
        self, method: str, verb: str, document: SignedDocument | None, wait_ms: int, controller: EngineAddress
    ) -> "_Answer":
        headers: list[tuple[bytes, bytes]] = [(b"authorization", f"Bearer {self._settings.bearer}".encode())]
        if document is not None:
            headers += [
                (b"content-type", b"application/json"),
                (KEY_ID, document.key_id.encode()),
                (SIGNATURE, document.signature.hex().encode()),
            ]
        try_ms = self._settings.try_ms
        request = HttpRequest(
            method=method,
            host=controller.host,
            port=controller.port,
            target=f"/node/v1/{self._settings.node}/{verb}",
            headers=tuple(headers),
            body=b"" if document is None else document.payload,
            connect_timeout_ms=min(CONNECT_MS, try_ms),
            head_timeout_ms=wait_ms + try_ms,
        )
        with trio.move_on_after((wait_ms + 2 * try_ms) / 1_000):
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
            code = json.loads(self.body)["error"]["code"]
        except (ValueError, KeyError, TypeError):
            code = None
        return ControlRefusal(self.status, code if isinstance(code, str) else None)
