"""Many nodes in one process: real signatures, mutual TLS on raw sockets and one selector, so that the fleet costs
little itself.

Each node has an identity, reports every two seconds over a connection that it keeps, and waits on another for its
desired state. When a report is due does not depend on answers: what comes late is late for as long as it was due.
"""

import heapq
import json
import selectors
import socket
import ssl
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import attrs

from benchmarks.load import Address, LoadFailed
from lunanexa_adapters.crypto.credentials import TlsCredentials
from lunanexa_adapters.crypto.signing import Ed25519Signer
from lunanexa_apps.codec import encode
from lunanexa_core.deployment import Assignment
from lunanexa_core.ids import BootId, NodeId, StartId
from lunanexa_core.southbound.heartbeat import (
    EngineReadings,
    Heartbeat,
    IdentityGrade,
    ReplicaReport,
    ReplicaState,
)

EVERY_S: Final = 2.0
WAIT_MS: Final = 30_000
_RAMP_S: Final = 0.0247
"""From one node's beginning, which is two handshakes, to the next one's."""
_READ_BYTES: Final = 64 * 1024
VERSION: Final = "0.1.0"


@attrs.frozen(kw_only=True)
class Place:
    """A node as the store knows it, who it is, and its one replica."""

    assignment: Assignment
    signer: Ed25519Signer = attrs.field(repr=False)
    credentials: TlsCredentials = attrs.field(repr=False)
    trust_version: int

    @property
    def node(self) -> NodeId:
        return self.assignment.node


class _Line:
    """One connection, with one request at a time."""

    def __init__(self, address: Address, owner: "_Node") -> None:
        self.owner = owner
        self.asked = False
        """Whether a request is under way."""
        self.due_s = 0.0
        """When the last request was due."""
        self._read = b""
        plain = socket.create_connection((address.host, address.port), timeout=10)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = owner.place.credentials.client_context(anonymous=False, verified=True)
        self.socket: ssl.SSLSocket = context.wrap_socket(plain)

    def ask(self, request: bytes, due_s: float) -> None:
        self.asked, self.due_s, self._read = True, due_s, b""
        self.socket.sendall(request)

    def answer(self) -> tuple[int, bytes] | None:
        """Status and body, once all is there."""
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise LoadFailed(f"{self.owner.place.node}: the connection was cut")
        self._read += data
        while self.socket.pending():  # of what TLS has read already the selector knows nothing
            self._read += self.socket.recv(_READ_BYTES)
        head, end, body = self._read.partition(b"\r\n\r\n")
        if not end:
            return None
        _, found, rest = head.lower().partition(b"\r\ncontent-length:")
        if len(body) < (int(rest.split(b"\r\n", 1)[0]) if found else 0):
            return None
        self.asked = False
        return int(head[9:12]), body


class _Node:
    """One machine and its two connections."""

    def __init__(self, place: Place, address: Address) -> None:
        self.place = place
        self.followed = "0.0"
        """Epoch and generation of the document that it has."""
        self.tells = _Line(address, self)
        self.waits = _Line(address, self)
        self._sequence = 0

    def report(self, due_s: float) -> None:
        self._sequence += 1
        epoch, _, generation = self.followed.partition(".")
        place = self.place.assignment
        replica = ReplicaReport(
            assignment=place.assignment,
            generation=place.generation,
            start=StartId(f"st_{place.assignment}"),
            state=ReplicaState.READY,
            identity=IdentityGrade.PROVEN,
            host="127.0.0.1",
            port=9_000,
            served_name="fleet",
            slots=4,
            pid=42,
            # Readings change each time, as those of an engine that works do.
            readings=EngineReadings(running=self._sequence % 4, waiting=0, resident_mib=900 + self._sequence % 7),
        )
        word = Heartbeat(
            node=self.place.node,
            boot=BootId(f"boot_{self.place.node}"),
            sequence=self._sequence,
            epoch=int(epoch),
            generation=int(generation),
            agent_version=VERSION,
            replicas=(replica,),
            available_mib=20_000 + self._sequence % 100,
            total_mib=24_000,
            trust_version=self.place.trust_version,
            leased=True,
        )
        self.tells.ask(self._signed("PUT", "heartbeat", encode(word)), due_s)

    def wait(self, now_s: float) -> None:
        target = f"desired?after={self.followed}&wait_ms={WAIT_MS}"
        self.waits.ask(self._head("GET", target) + b"\r\n", now_s)

    def _signed(self, method: str, verb: str, payload: bytes) -> bytes:
        document = self.place.signer.sign(payload)
        head = (
            f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n"
            f"x-lunanexa-key-id: {document.key_id}\r\nx-lunanexa-signature: {document.signature.hex()}\r\n\r\n"
        )
        return self._head(method, verb) + head.encode() + payload

    def _head(self, method: str, target: str) -> bytes:
        return f"{method} /node/v1/{self.place.node}/{target} HTTP/1.1\r\nhost: controller\r\n".encode()


@attrs.define(kw_only=True)
class Heard:
    """What came back in the measured time."""

    answers_s: list[float] = attrs.Factory(list)
    """From when each report was due to its answer."""
    refused: Counter[str] = attrs.Factory(Counter)
    left_out: int = 0
    """Reports that were due when the one before had no answer yet."""
    documents: int = 0


class NodeFleet:
    """All nodes; :meth:`run` lets time pass. Raises :class:`LoadFailed` when a connection is cut."""

    def __init__(self, address: Address, places: Sequence[Place]) -> None:
        self.heard = Heard()
        self._selector = selectors.DefaultSelector()
        self._address = address
        self._places = places
        self._nodes: dict[int, _Node] = {}
        began_s = time.perf_counter()
        self._due = [(began_s + number * _RAMP_S, number) for number in range(len(places))]
        self.ramp_s = len(places) * _RAMP_S

    def close(self) -> None:
        for node in self._nodes.values():
            node.tells.socket.close()
            node.waits.socket.close()
        self._selector.close()

    def run(self, seconds: float) -> Heard:
        """Goes on for so long; what was heard in that time."""
        self.heard = Heard()
        until_s = time.perf_counter() + seconds
        while (now_s := time.perf_counter()) < until_s:
            if self._due[0][0] <= now_s:
                self._begin()  # one between two looks: a handshake takes the time of many answers
            for key, _ in self._selector.select(max(0.0, min(self._due[0][0], until_s) - time.perf_counter())):
                answer = key.data.answer()
                if answer is not None:
                    self._take(key.data, *answer)
        return self.heard

    def _begin(self) -> None:
        due_s, number = self._due[0]
        heapq.heapreplace(self._due, (due_s + EVERY_S, number))
        node = self._nodes.get(number) or self._connect(number)
        if node.tells.asked:
            self.heard.left_out += 1
        else:
            node.report(due_s)

    def _connect(self, number: int) -> _Node:
        node = self._nodes[number] = _Node(self._places[number], self._address)
        for line in (node.tells, node.waits):
            self._selector.register(line.socket, selectors.EVENT_READ, line)
        node.wait(time.perf_counter())
        return node

    def _take(self, line: _Line, status: int, body: bytes) -> None:
        node, now_s = line.owner, time.perf_counter()
        if line is node.waits:
            self._follow(node, status, body, now_s)
        elif status != 200:
            self.heard.refused[f"{status} {body[:120]!r}"] += 1
        else:
            self.heard.answers_s.append(now_s - line.due_s)

    def _follow(self, node: _Node, status: int, body: bytes, now_s: float) -> None:
        if status == 200:
            document: dict[str, Any] = json.loads(body)
            node.followed = f"{document['epoch']}.{document['generation']}"
            self.heard.documents += 1
        elif status != 204:
            self.heard.refused[f"desired: {status} {body[:120]!r}"] += 1
        node.wait(now_s)
