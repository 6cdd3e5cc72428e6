"""A node as its controller sees it: what it signs and shows, made by hand, so that a test can make it wrong."""

from typing import Any

import attrs

from lunanexa_apps.codec import decode, encode
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_core.commands import MintToken
from lunanexa_core.events import EnrolmentTokenMinted
from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_core.ids import BootId, NodeId
from lunanexa_core.keys import secret_digest
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_core.southbound.enrolment import Enrolled, Enrolment, Renewal
from lunanexa_core.southbound.heartbeat import ReplicaReport
from lunanexa_ports.clock import Clock
from lunanexa_simulation.credentials import SimulatedCredentials
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.signing import SimulatedKeyring
from tests.core.builders import heartbeat

VERSION = "0.1.0"


class NodeParty:
    """Whoever calls himself ``name``, with keys of his own."""

    def __init__(self, keyring: SimulatedKeyring, streams: Streams, clock: Clock, name: str) -> None:
        self.name = NodeId(name)
        self.signer = keyring.new_key(streams.stream(f"{name}/signing"))
        self.credentials = SimulatedCredentials(keyring, streams.stream(f"{name}/tls"), clock)
        self.sequence = 0

    @property
    def peer(self) -> PeerCertificate | None:
        return self.credentials.certificate

    def enrolment(self, token: MintToken, /, **changes: Any) -> SignedDocument:
        base = Enrolment(
            node=self.name,
            public_key=self.signer.public_key,
            agent_version=VERSION,
            token=token.token,
            secret=secret_of(token),
            certificate_request=self.credentials.request().hex(),
        )
        return self.signer.sign(encode(attrs.evolve(base, **changes)))

    def renewal(self, challenge: str | None = None, **changes: Any) -> SignedDocument:
        base = Renewal(
            node=self.name,
            certificate_request=self.credentials.request().hex(),
            challenge=challenge,
            agent_version=VERSION,
        )
        return self.signer.sign(encode(attrs.evolve(base, **changes)))

    def accept(self, answer: object) -> Enrolled:
        """Takes up what an enrolment or a renewal was answered with."""
        assert isinstance(answer, bytes), answer
        enrolled = decode(Enrolled, answer)
        self.credentials.trust([one.certificate for one in enrolled.trust.authorities])
        self.credentials.accept(enrolled.certificate)
        return enrolled

    def beat(self, *replicas: ReplicaReport, boot: str = "boot_1", **changes: Any) -> SignedDocument:
        self.sequence += 1
        base = heartbeat(self.sequence, *replicas, node=self.name, boot=BootId(f"{self.name}_{boot}"))
        return self.signer.sign(encode(attrs.evolve(base, **changes)))


def token_for(node: str, *, again: bool = False, number: int = 1) -> MintToken:
    name = f"tok_{node}_{number}"
    digest = secret_digest(f"secret of {name}")
    return MintToken(node=NodeId(node), token=name, digest=digest, again=again, loopback=True)


def secret_of(token: MintToken) -> str:
    return f"secret of {token.token}"


async def mint(kernel: Kernel, node: str, *, again: bool = False, number: int = 1) -> MintToken:
    token = token_for(node, again=again, number=number)
    answer = await kernel.ask(token, "operator")
    assert isinstance(answer, EnrolmentTokenMinted), answer
    return token
