"""Who belongs to the fleet and what all of it trust, as operators decide it."""

from functools import partial

from lunanexa_apps.codec import unstructure
from lunanexa_apps.controller.authority import find_operator
from lunanexa_apps.controller.batches import STORE_DOWN
from lunanexa_apps.controller.fleet_documents import node_document
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.unreadable import read_document
from lunanexa_core.canonical import JsonValue
from lunanexa_core.commands import AddressNode, Command, MintToken, RevokeNode, RotateTrust
from lunanexa_core.contract.trust import (
    AddressRequest,
    AuthorityDocument,
    AwaitedNode,
    Lack,
    RevokeRequest,
    SigningKeyDocument,
    TokenMinted,
    TokenRequest,
    TrustDocument,
)
from lunanexa_core.events import EnrolmentTokenMinted
from lunanexa_core.identity.rotate import awaited
from lunanexa_core.identity.token import EnrolmentToken
from lunanexa_core.identity.trust import Authority, TrustSet, TrustStage
from lunanexa_core.ids import NodeId
from lunanexa_core.kernel.decide import Answer
from lunanexa_core.keys import ApiKey, Role, secret_digest
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.fleet_keys import FleetKeys, Revoked
from lunanexa_ports.ids import IdSource
from lunanexa_ports.trust_plane import TrustPlane
from lunanexa_ports.workers import Workers


class KernelTrust(TrustPlane):
    """Reads the kernel's committed state, and turns writes into commands. ``node_url`` is where this controller's
    nodes enrol; ``None``: it has no listener for nodes."""

    def __init__(self, kernel: Kernel, ids: IdSource, keys: FleetKeys, workers: Workers, node_url: str | None) -> None:
        self._kernel = kernel
        self._ids = ids
        self._keys = keys
        self._workers = workers
        self._node_url = node_url

    async def mint_token(self, token: str | None, node: str, document: JsonValue) -> JsonValue | Refusal:
        operator, asked = find_operator(self._kernel, token, Role.OPERATOR), read_document(TokenRequest, document)
        if isinstance(operator, Refusal):
            return operator
        if isinstance(asked, Refusal):
            return asked
        trust, name, secret = self._kernel.state.trust, self._ids.new("token"), self._ids.secret()
        if trust is None:
            return STORE_DOWN  # It leads, and what it begins with is not durable yet.
        command = MintToken(
            node=NodeId(node),
            token=name,
            digest=secret_digest(secret),
            again=asked.again,
            loopback=asked.loopback,
        )
        answer = await self._ask(command, operator)
        if isinstance(answer, Refusal):
            return answer
        assert isinstance(answer, EnrolmentTokenMinted), answer
        minted = EnrolmentToken(
            node=NodeId(node),
            token=name,
            secret=secret,
            authority=trust.issuing.fingerprint,
            loopback=asked.loopback,
        )
        return unstructure(
            TokenMinted(
                node=minted.node,
                token=minted.token,
                line=minted.line(),
                expires_in_ms=max(0, answer.expires_wall_ms - self._kernel.now().wall_ms),
                node_url=self._node_url,
            )
        )

    async def revoke_node(self, token: str | None, node: str, document: JsonValue) -> JsonValue | Refusal:
        operator, asked = find_operator(self._kernel, token, Role.OPERATOR), read_document(RevokeRequest, document)
        if isinstance(operator, Refusal):
            return operator
        if isinstance(asked, Refusal):
            return asked
        return await self._change(RevokeNode(node=NodeId(node), reason=asked.reason or None), operator)

    async def set_address(self, token: str | None, node: str, document: JsonValue) -> JsonValue | Refusal:
        operator, asked = find_operator(self._kernel, token, Role.OPERATOR), read_document(AddressRequest, document)
        if isinstance(operator, Refusal):
            return operator
        if isinstance(asked, Refusal):
            return asked
        return await self._change(AddressNode(node=NodeId(node), data_address=asked.data_address), operator)

    async def trust(self, token: str | None) -> JsonValue | Refusal:
        operator = find_operator(self._kernel, token, Role.OPERATOR, Role.AUDITOR)
        return operator if isinstance(operator, Refusal) else self._document()

    async def rotate(self, token: str | None) -> JsonValue | Refusal:
        operator = find_operator(self._kernel, token, Role.OPERATOR)
        if isinstance(operator, Refusal):
            return operator
        trust = self._kernel.state.trust
        if trust is None or trust.stage is not TrustStage.STABLE:
            return self._document()
        brought = self._brought(trust)
        made, signing_key = self._keys.make()
        command = RotateTrust(authority=brought or made, signing_key=signing_key)
        answer = await self._ask(command, operator)
        # A write of unknown outcome was resolved before the answer; another call may have been first.
        current = self._kernel.state.trust or trust
        self._keys.forget(
            "" if made in current.authorities else made.fingerprint,
            "" if signing_key in current.signing_keys else signing_key.key_id,
        )
        return answer if isinstance(answer, Refusal) else self._document()

    async def revocation_list(self, token: str | None) -> str | Refusal:
        operator = find_operator(self._kernel, token, Role.OPERATOR, Role.AUDITOR)
        if isinstance(operator, Refusal):
            return operator
        state, now = self._kernel.state, self._kernel.now()
        held = self._keys.authorities()
        trusted = () if state.trust is None else state.trust.authorities
        revoked = tuple(
            Revoked(serial=one.serial, revoked_s=one.revoked_wall_ms // 1_000)
            for _, one in sorted(state.revoked.items())
            if now.wall_ms < one.not_after_wall_ms
        )
        signed = [
            partial(
                self._keys.revocation_list,
                authority.fingerprint,
                revoked,
                number=now.wall_ms,
                now_s=now.wall_ms // 1_000,
            )
            for authority in trusted
            if authority.fingerprint in held
        ]
        return "".join([await self._workers.run(sign) for sign in signed])

    def _brought(self, trust: TrustSet) -> Authority | None:
        """The newest authority that was put beside the one in use, and is to follow it."""
        held = self._keys.authorities()
        names = list(held)
        newer = names[names.index(trust.issuing.fingerprint) + 1 :] if trust.issuing.fingerprint in held else []
        return held[newer[-1]] if newer else None

    async def _change(self, command: RevokeNode | AddressNode, operator: ApiKey) -> JsonValue | Refusal:
        answer = await self._ask(command, operator)
        return answer if isinstance(answer, Refusal) else node_document(self._kernel, command.node)

    def _document(self) -> JsonValue | Refusal:
        trust = self._kernel.state.trust
        if trust is None:
            return STORE_DOWN
        return unstructure(
            TrustDocument(
                version=trust.version,
                stage=trust.stage,
                authorities=tuple(
                    AuthorityDocument(
                        fingerprint=one.fingerprint, certificate=one.certificate, issuing=one == trust.issuing
                    )
                    for one in trust.authorities
                ),
                signing_keys=tuple(
                    SigningKeyDocument(key_id=one.key_id, public_key=one.public_key, signing=one == trust.signing)
                    for one in trust.signing_keys
                ),
                waiting=self._waiting(trust),
                revoked=len(self._kernel.state.revoked),
            )
        )

    def _waiting(self, trust: TrustSet) -> tuple[AwaitedNode, ...]:
        state, observed = self._kernel.state, self._kernel.observed
        return tuple(
            AwaitedNode(node=name, state=state.nodes[name].liveness.value, lacks=self._lack(trust, name))
            for name in awaited(state, observed)
        )

    def _lack(self, trust: TrustSet, node: NodeId) -> Lack:
        reading = self._kernel.observed.nodes.get(node)
        if reading is None or reading.heartbeat.trust_version is None:
            return Lack.NOT_HEARD
        return Lack.OLD_TRUST if reading.heartbeat.trust_version < trust.version else Lack.OLD_CERTIFICATE

    async def _ask(self, command: Command, operator: ApiKey) -> Answer:
        try:
            return await self._kernel.ask(command, operator.key)
        except PortUnavailable:
            return Refusal(outcome=Outcome.STORE_UNAVAILABLE, message="The controller is ending.")
