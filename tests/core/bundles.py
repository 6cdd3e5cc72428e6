"""Bundles for tests."""

from typing import Any

import attrs

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.ids import AssignmentId, ClusterId, DeploymentId, NodeId
from lunanexa_core.southbound.bundle import Blob, Bundle, TakenBundle, blob_path
from lunanexa_core.southbound.documents import DesiredAssignment, DesiredState

CLUSTER, NODE = ClusterId("plant-7"), NodeId("edge-1")


def bundle(generation: int, predecessor: int | None = None, /, **changes: Any) -> Bundle:
    """One that is a baseline where it has no predecessor."""
    document = DesiredState(cluster=CLUSTER, node=NODE, epoch=0, generation=generation)
    base = Bundle(
        cluster=CLUSTER,
        node=NODE,
        generation=generation,
        predecessor=predecessor,
        baseline=predecessor is None,
        document=document,
    )
    return attrs.evolve(base, **changes)


def taken(generation: int) -> TakenBundle:
    return TakenBundle(bundle=bundle(generation), digest=f"digest {generation}")


def assigned(generation: int, **engine: Any) -> DesiredState:
    spec = attrs.evolve(EngineSpec(driver="reference", served_name="tiny", binary="/opt/engine"), **engine)
    one = DesiredAssignment(
        assignment=AssignmentId("as_1"), generation=generation, deployment=DeploymentId("tiny"), engine=spec
    )
    return DesiredState(cluster=CLUSTER, node=NODE, epoch=0, generation=generation, assignments=(one,))


def blob(sha256: str = "ab" * 32, **changes: Any) -> Blob:
    return attrs.evolve(Blob(path=blob_path(sha256), size_bytes=3, sha256=sha256), **changes)
