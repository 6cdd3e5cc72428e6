"""Documents that a node must not follow: each with why, as the node says it."""

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from lunanexa_apps.codec import decode, encode
from lunanexa_apps.node.control import MAX_ANSWER_BYTES
from lunanexa_core.ids import ClusterId
from lunanexa_core.southbound.documents import DesiredState, DocumentRefusal, SignedDocument
from lunanexa_ports.signing import Signer
from lunanexa_simulation.scenarios.between import Between, Said, signed
from lunanexa_simulation.world import World

Lie: TypeAlias = Callable[[SignedDocument], Said]
"""What is said instead of the newest document."""


def forged_documents(world: World, between: Between) -> list[tuple[str, Lie, DocumentRefusal | None]]:
    """For the first node; with ``None`` what it can't take for a document at all."""
    node, other = world.nodes
    own_key = next(iter(world.fleet_keys.signers().values()))
    first, others = between.documents(node.name)[0], between.documents(other.name)[-1]

    def newer(newest: SignedDocument, **members: Any) -> DesiredState:
        desired = decode(DesiredState, newest.payload)
        return attrs.evolve(desired, **{"generation": desired.generation + 1, "assignments": (), **members})

    def by(signer: Signer, **members: Any) -> Lie:
        return lambda newest: signed(signer.sign(encode(newer(newest, **members))))

    def changed(newest: SignedDocument) -> Said:
        return signed(attrs.evolve(newest, payload=encode(newer(newest))))

    def in_our_name(newest: SignedDocument) -> Said:
        return signed(attrs.evolve(other.signer.sign(encode(newer(newest))), key_id=newest.key_id))

    def unsigned(newest: SignedDocument) -> Said:
        return Said((), encode(newer(newest)), 200)

    def same(newest: SignedDocument) -> Said:
        return by(own_key, generation=decode(DesiredState, newest.payload).generation)(newest)

    def endless(newest: SignedDocument) -> Said:
        return signed(attrs.evolve(newest, payload=bytes(MAX_ANSWER_BYTES + 1)))

    old_epoch = decode(DesiredState, first.payload).epoch
    return [
        ("what was changed on the way", changed, DocumentRefusal.BAD_SIGNATURE),
        ("what another signed in our name", in_our_name, DocumentRefusal.BAD_SIGNATURE),
        ("what a node signed", by(other.signer), DocumentRefusal.UNKNOWN_KEY),
        ("another node's document", lambda _: signed(others), DocumentRefusal.OTHER_NODE),
        ("another cluster's", by(own_key, cluster=ClusterId("cl_other")), DocumentRefusal.OTHER_CLUSTER),
        ("the first document", lambda _: signed(first), DocumentRefusal.ROLLED_BACK),
        ("the one before the newest", lambda _: signed(between.documents(node.name)[-2]), DocumentRefusal.ROLLED_BACK),
        ("a fenced controller's", by(own_key, epoch=old_epoch), DocumentRefusal.ROLLED_BACK),
        ("another content of its generation", same, DocumentRefusal.CONTENT_CHANGED),
        ("what is none", lambda _: signed(own_key.sign(b"{")), DocumentRefusal.NOT_READABLE),
        ("what nobody signed", unsigned, None),
        ("what has no end", endless, None),
        ("an error without a word", lambda _: Said((), b"<html>", 500), None),
    ]
