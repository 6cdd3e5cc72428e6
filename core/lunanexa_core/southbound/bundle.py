"""Bundles: how a node without a network is told what shall run. Each is one signed file that people carry to it.

A bundle names the one before it, so that none can be left out, and none can be gone back to. A node that has nothing,
because it is new or because its store was lost, takes only a bundle that is marked as a baseline, and only one above
the counter that lies beside its policy, outside of its store: with a store that was set back, or emptied, nobody can
take a node back to what it ran before.

A bundle is in force until the next one; there is no lease.
"""

import enum
import re
from collections.abc import Iterable
from typing import Final

import attrs

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.specification import parse_engine_url
from lunanexa_core.ids import ClusterId, NodeId, is_identifier
from lunanexa_core.southbound.documents import DesiredState

BUNDLE_SCHEMA: Final = "lunanexa.bundle.v1"
BLOBS_MAX: Final = 256
TAKEN_MAX: Final = 64
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_BLOB_PATH = re.compile(r"blobs/sha256/([0-9a-f]{64})(?![0-9a-f])")


class BundleRefusal(enum.Enum):
    """Why a node does not follow a bundle."""

    UNKNOWN_KEY = "unknown_key"
    BAD_SIGNATURE = "bad_signature"
    NOT_READABLE = "not_readable"
    INCONSISTENT = "inconsistent"
    """It contradicts itself: its document is of another node or generation, or a blob has no place."""
    REACHES_OUT = "reaches_out"
    """It names an engine on another machine."""
    OTHER_CLUSTER = "other_cluster"
    OTHER_NODE = "other_node"
    ROLLED_BACK = "rolled_back"
    CONTENT_CHANGED = "content_changed"
    """Its generation is in force, with other content."""
    SKIPPED = "skipped"
    """The bundle before it is not the one in force."""
    NO_BASELINE = "no_baseline"
    """This node has nothing yet, and it is no baseline."""
    BLOB_MISSING = "blob_missing"
    BLOB_CHANGED = "blob_changed"
    NO_ROOM = "no_room"
    """The node's disk has no room for a blob."""
    BLOB_UNPLACED = "blob_unplaced"
    """The node can't put a blob in its place; its log says why."""


@attrs.frozen(kw_only=True)
class Blob:
    """A file that comes with a bundle, by its content."""

    path: str
    """In the bundle's folder: :func:`blob_path` of its hash."""
    size_bytes: int
    sha256: str
    """64 hexadecimal digits."""


@attrs.frozen(kw_only=True)
class Bundle:
    """What is signed."""

    schema: str = BUNDLE_SCHEMA
    cluster: ClusterId
    node: NodeId
    generation: int
    """From 1; it rises with each bundle for the node."""
    predecessor: int | None = None
    """The generation that must be in force; ``None``: none, which only a baseline may say."""
    baseline: bool = False
    """Whether it says all that a node that has nothing must know."""
    document: DesiredState
    blobs: tuple[Blob, ...] = ()


@attrs.frozen(kw_only=True)
class TakenBundle:
    """The bundle in force."""

    bundle: Bundle
    digest: str
    """SHA-256 of its bytes as signed, hex."""
    before: tuple[str, ...] = ()
    """Digests of those that were in force before it, newest last, at most :data:`TAKEN_MAX`: who leaves them lying
    does no harm."""

    def followed_by(self, bundle: Bundle, digest: str) -> "TakenBundle":
        """``bundle`` in the place of this one."""
        return TakenBundle(bundle=bundle, digest=digest, before=(*self.before, self.digest)[-TAKEN_MAX:])


def blob_path(sha256: str) -> str:
    """Where a blob lies in an OCI image layout (image-spec 1.1, "Image Layout Specification")."""
    return f"blobs/sha256/{sha256}"


def named_blobs(bundle: Bundle, engines: Iterable[EngineSpec]) -> frozenset[str]:
    """The hashes of all blobs that are still needed while ``bundle`` is in force and ``engines`` run, perhaps by an
    earlier one: those that come with it, and those whose place an engine's own texts name."""
    wanted = (*(one.engine for one in bundle.document.assignments), *engines)
    texts = (text for one in wanted for text in (one.binary, one.model_path, *one.arguments) if text is not None)
    placed = (found for text in texts for found in _BLOB_PATH.findall(text))
    return frozenset((*(blob.sha256 for blob in bundle.blobs), *placed))


def in_force(accepted: TakenBundle | None, floor: int) -> TakenBundle | None:
    """What counts of what a node remembers: a store below the counter was set back, and is as good as none."""
    return None if accepted is None or accepted.bundle.generation < floor else accepted


def check_bundle(
    accepted: TakenBundle | None, floor: int, bundle: Bundle, digest: str, *, node: NodeId
) -> BundleRefusal | None:
    """Whether ``bundle``, whose signature was verified, may be in force on ``node`` after ``accepted``. ``floor`` is
    the counter beside the policy: the highest generation that was ever in force. Its blobs are checked after it."""
    if bundle.node != node:
        return BundleRefusal.OTHER_NODE
    current = in_force(accepted, floor)
    if current is not None and bundle.cluster != current.bundle.cluster:
        return BundleRefusal.OTHER_CLUSTER
    problem = _contradiction(bundle)
    if problem is not None:
        return problem
    if current is None:
        return _check_first(floor, bundle)
    if bundle.generation < current.bundle.generation:
        return BundleRefusal.ROLLED_BACK
    if bundle.generation == current.bundle.generation:
        return None if digest == current.digest else BundleRefusal.CONTENT_CHANGED
    return None if bundle.predecessor == current.bundle.generation else BundleRefusal.SKIPPED


def _check_first(floor: int, bundle: Bundle) -> BundleRefusal | None:
    if not bundle.baseline:
        return BundleRefusal.NO_BASELINE
    return None if bundle.generation > floor else BundleRefusal.ROLLED_BACK


def _contradiction(bundle: Bundle) -> BundleRefusal | None:
    document, before = bundle.document, bundle.predecessor
    same = (document.cluster, document.node, document.generation) == (bundle.cluster, bundle.node, bundle.generation)
    ordered = bundle.generation >= 1 and (bundle.baseline if before is None else 1 <= before < bundle.generation)
    named = bundle.schema == BUNDLE_SCHEMA and is_identifier(bundle.cluster)
    if not (same and ordered and named and _well_placed(bundle.blobs)):
        return BundleRefusal.INCONSISTENT
    urls = [one.engine.url for one in document.assignments if one.engine.url is not None]
    addresses = [parse_engine_url(url) for url in urls]
    # One that is no address is refused by itself, where it would be started.
    elsewhere = any(address is not None and not address.on_this_machine for address in addresses)
    return BundleRefusal.REACHES_OUT if elsewhere else None


def _well_placed(blobs: tuple[Blob, ...]) -> bool:
    whole = all(
        _SHA256.match(blob.sha256) is not None and blob.size_bytes >= 0 and blob.path == blob_path(blob.sha256)
        for blob in blobs
    )
    return whole and len(blobs) <= BLOBS_MAX and len({blob.sha256 for blob in blobs}) == len(blobs)
