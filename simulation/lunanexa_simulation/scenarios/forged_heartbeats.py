"""Heartbeats that are not the node's own, or not the newest: each with what the controller must answer."""

import json
from typing import Any, Final

import attrs

from lunanexa_adapters.asgi.node_plane import BODY_BYTES_MAX, KEY_ID_HEADER, SIGNATURE_HEADER
from lunanexa_apps.codec import encode
from lunanexa_apps.node.control import MAX_ANSWER_BYTES, SERVER_NAME
from lunanexa_core.identity.certificate import VALID_MS
from lunanexa_core.identity.names import Party, any_of, node_identity
from lunanexa_core.nodes.heartbeat import AHEAD_MAX
from lunanexa_core.outcomes import Outcome
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_ports.http_client import HttpBroken, HttpRequest, TlsPeer
from lunanexa_simulation.controller_host import HOST, NODE_PORT
from lunanexa_simulation.credentials import SimulatedCredentials
from lunanexa_simulation.http_client import SimulatedHttpClient
from lunanexa_simulation.node_host import NodeHost
from lunanexa_simulation.scenarios.between import Between
from lunanexa_simulation.scenarios.hostile import cluster_of, next_heartbeat, shown_as
from lunanexa_simulation.world import World

FORGED: Final = "forged"
"""Stands in all that is no copy; nothing of the controller's may ever say it."""
CUT: Final = (0, None)
DENIED: Final = (403, Outcome.PERMISSION_DENIED.value)
STALE: Final = (409, Outcome.STALE_GENERATION.value)
WANTED: Final = (409, Outcome.DOCUMENT_WANTED.value)
INVALID: Final = (400, Outcome.INVALID_REQUEST.value)
TOO_LONG: Final = (413, Outcome.PAYLOAD_TOO_LARGE.value)
Told = tuple[int, str | None]


@attrs.frozen
class Case:
    """A heartbeat for the first node: whose certificate is shown, what is said, and what must come of it."""

    name: str
    shown: SimulatedCredentials | None
    document: SignedDocument
    told: Told
    anonymous: bool = False


def forged_heartbeats(world: World, between: Between, old: SignedDocument) -> list[Case]:
    """In the name of the first node. ``old``: one of a boot before this one."""
    node, other = world.nodes
    own, named = node.own_credentials(), node_identity(cluster_of(world), node.name)
    # Above all that its agent says meanwhile: what is wrong with it is nothing but what the case names.
    newer = attrs.evolve(next_heartbeat(world, node), agent_version=FORGED)
    newer = attrs.evolve(newer, sequence=newer.sequence + 1_000)
    right, copies = node.signer.sign(encode(newer)), between.heartbeats(node.name)
    changed = attrs.evolve(right, payload=encode(attrs.evolve(newer, sequence=newer.sequence + 1)))

    def lie(**members: Any) -> SignedDocument:
        return node.signer.sign(encode(attrs.evolve(newer, **members)))

    return [
        Case("who shows no certificate", own, right, DENIED, anonymous=True),
        Case("who speaks in the clear", None, right, CUT),
        Case("who shows another node's certificate", other.own_credentials(), right, DENIED),
        Case("who shows another authority's", shown_as(world, named, of_ours=False), right, CUT),
        Case("who shows one that has expired", shown_as(world, named, age_ms=VALID_MS + 1_000), right, CUT),
        Case("what another node signed", own, other.signer.sign(right.payload), DENIED),
        Case("what another signed by its name", own, attrs.evolve(right, signature=bytes(64)), DENIED),
        Case("what was changed on the way", own, changed, DENIED),
        Case("a copy of the newest", own, copies[-1], STALE),
        Case("a copy of an older one", own, copies[-2], STALE),
        Case("one of an older boot", own, old, STALE),
        Case("another node's own one", own, between.heartbeats(other.name)[-1], DENIED),
        Case("one that names another node", own, lie(node=other.name), DENIED),
        Case("a claim of a higher generation", own, lie(generation=newer.generation + 1), WANTED),
        Case("a claim of a higher epoch", own, lie(epoch=newer.epoch + 1), WANTED),
        Case("a claim beyond all that can be", own, lie(generation=newer.generation + AHEAD_MAX + 1), INVALID),
        Case("what is no heartbeat", own, node.signer.sign(b'{"schema": "lunanexa.heartbeat.v1"}'), INVALID),
        Case("what has no end", own, node.signer.sign(b" " * (BODY_BYTES_MAX + 1)), TOO_LONG),
    ]


async def says(world: World, node: NodeHost, case: Case) -> Told:
    """Status and code of the controller's answer, from a machine of nobody's."""
    client = SimulatedHttpClient(world.network, "stranger", credentials=case.shown)
    server = TlsPeer(identity=any_of(cluster_of(world), Party.CONTROLLER), server_name=SERVER_NAME)
    document = case.document
    request = HttpRequest(
        method="PUT",
        host=HOST,
        port=NODE_PORT,
        target=f"/node/v1/{node.name}/heartbeat",
        headers=(
            (KEY_ID_HEADER.encode(), document.key_id.encode()),
            (SIGNATURE_HEADER.encode(), document.signature.hex().encode()),
        ),
        body=document.payload,
        tls=None if case.shown is None else attrs.evolve(server, anonymous=case.anonymous),
    )
    try:
        async with client.exchange(request) as response:
            body = await response.read(MAX_ANSWER_BYTES)
            return response.status, None if response.status == 200 else json.loads(body)["error"]["code"]
    except HttpBroken:
        return CUT
    finally:
        await client.aclose()
