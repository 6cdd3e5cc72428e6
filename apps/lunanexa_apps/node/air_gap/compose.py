"""The next bundle of a node, from what a person wrote of it."""

from collections.abc import Mapping
from typing import Final, TypeAlias

import attrs

from lunanexa_apps.codec import encode
from lunanexa_core.deployment import EngineSpec
from lunanexa_core.ids import AssignmentId, ClusterId, DeploymentId, NodeId, is_identifier
from lunanexa_core.southbound.bundle import (
    Blob,
    Bundle,
    BundleRefusal,
    TakenBundle,
    blob_path,
    check_bundle,
)
from lunanexa_core.southbound.documents import DesiredAssignment, DesiredState, Directive
from lunanexa_ports.inbox import BUNDLE_BYTES_MAX

BLOB: Final = "blob:"
"""What names a blob by its file's name, where a path on the node is meant."""
_PROBLEMS: Final = {
    BundleRefusal.INCONSISTENT: "generation and predecessor do not fit, or two blobs are the same",
    BundleRefusal.REACHES_OUT: "an engine's url is of another machine; such a node adopts its own ones only",
    BundleRefusal.OTHER_CLUSTER: "cluster is not that of the bundle before",
    BundleRefusal.OTHER_NODE: "node is not that of the bundle before",
}


@attrs.frozen(kw_only=True)
class WrittenDeployment:
    """One engine on the node."""

    deployment: DeploymentId
    engine: EngineSpec
    engine_key: str | None = attrs.field(default=None, repr=False)
    """The key that the engine will ask for. It is readable on the medium."""


@attrs.frozen(kw_only=True)
class WrittenDocument:
    """All that shall run on one node."""

    cluster: ClusterId
    node: NodeId
    data_dir: str = "/var/lib/lunanexa"
    """The node's ``--data-dir``: where blobs will lie."""
    directive: Directive = Directive.ACTIVE
    deployments: tuple[WrittenDeployment, ...] = ()


@attrs.frozen
class NotComposed:
    """What is wrong with what was written."""

    problem: str


Composed: TypeAlias = Bundle | NotComposed


def compose(
    written: WrittenDocument, before: Bundle | None, *, generation: int, baseline: bool, blobs: Mapping[str, Blob]
) -> Composed:
    """A bundle of that ``generation`` to come after ``before``. What is written as before goes on as it is, with its
    generation; what is not, is stopped and started anew. ``blobs`` are named by their file."""
    names = [one.deployment for one in written.deployments]
    for field, name in (("cluster", written.cluster), ("node", written.node), *(("deployment", one) for one in names)):
        if not is_identifier(name):
            return NotComposed(f"{field} must be 1 to 256 ASCII letters, digits and -_.:")
    if len(set(names)) != len(names):
        return NotComposed("deployments: each must have a name of its own")
    known = {} if before is None else {one.assignment: one for one in before.document.assignments}
    assignments = []
    for one in written.deployments:
        engine = _with_blobs(one.engine, written.data_dir, blobs)
        if isinstance(engine, NotComposed):
            return engine
        made = DesiredAssignment(
            assignment=AssignmentId(one.deployment),
            generation=generation,
            deployment=one.deployment,
            engine=engine,
            engine_key=one.engine_key,
        )
        earlier = known.get(made.assignment)
        same = earlier is not None and attrs.evolve(made, generation=earlier.generation) == earlier
        assignments.append(earlier if same and earlier is not None else made)
    bundle = Bundle(
        cluster=written.cluster,
        node=written.node,
        generation=generation,
        predecessor=None if before is None else before.generation,
        baseline=baseline,
        document=DesiredState(
            cluster=written.cluster,
            node=written.node,
            epoch=0,
            generation=generation,
            directive=written.directive,
            assignments=tuple(assignments),
        ),
        blobs=tuple(blobs.values()),
    )
    return _checked(bundle, before)


def _checked(bundle: Bundle, before: Bundle | None) -> Composed:
    """As its node will look at it."""
    taken = None if before is None else TakenBundle(bundle=before, digest="")
    node = bundle.node if before is None else before.node
    refusal = check_bundle(taken, 0, bundle, "new", node=node)
    if refusal is not None:
        return NotComposed(_PROBLEMS.get(refusal, refusal.value))
    if len(encode(bundle)) > BUNDLE_BYTES_MAX:
        return NotComposed(f"it is longer than {BUNDLE_BYTES_MAX} bytes")
    return bundle


def _with_blobs(engine: EngineSpec, data_dir: str, blobs: Mapping[str, Blob]) -> EngineSpec | NotComposed:
    texts = [text for text in (engine.binary, engine.model_path, *engine.arguments) if text is not None]
    for text in texts:
        if text.startswith(BLOB) and text.removeprefix(BLOB) not in blobs:
            return NotComposed(f"{text}: there is no --blob of that file name")

    def placed(text: str) -> str:
        if not text.startswith(BLOB):
            return text
        return f"{data_dir.rstrip('/')}/node/{blob_path(blobs[text.removeprefix(BLOB)].sha256)}"

    return attrs.evolve(
        engine,
        binary=None if engine.binary is None else placed(engine.binary),
        model_path=None if engine.model_path is None else placed(engine.model_path),
        arguments=tuple(placed(text) for text in engine.arguments),
    )
