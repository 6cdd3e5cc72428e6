"""Which bundle may follow which on a node without a network."""

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.ids import ClusterId, NodeId
from lunanexa_core.southbound.bundle import (
    TAKEN_MAX,
    Bundle,
    BundleRefusal,
    TakenBundle,
    blob_path,
    check_bundle,
    in_force,
    named_blobs,
)
from lunanexa_core.southbound.outbox import key_fingerprint
from tests.core.bundles import CLUSTER, NODE, assigned, blob, bundle, taken

OTHERS = ClusterId("plant-8"), NodeId("edge-2")


def check(accepted: TakenBundle | None, floor: int, offered: Bundle, digest: str = "new") -> BundleRefusal | None:
    return check_bundle(accepted, floor, offered, digest, node=NODE)


@st.composite
def bundles(draw: st.DrawFn) -> Bundle:
    generation = draw(st.integers(0, 6))
    predecessor = draw(st.none() | st.integers(0, 6))
    made = bundle(generation, predecessor, baseline=draw(st.booleans()))
    if draw(st.integers(0, 5)) == 0:
        cluster, node = draw(st.sampled_from([(OTHERS[0], NODE), (CLUSTER, OTHERS[1])]))
        document = attrs.evolve(made.document, cluster=cluster, node=node)
        made = attrs.evolve(made, cluster=cluster, node=node, document=document)
    return made


steps = st.lists(st.tuples(bundles(), st.sampled_from(["goes on", "goes on", "goes on", "store lost", "set back"])))


@given(steps)
def test_nothing_is_ever_gone_back_to(offers: list[tuple[Bundle, str]]) -> None:
    """Whatever is offered in whatever order, and whatever becomes of the store: each bundle that comes into force is
    above all that were, and names the one before it, or is a baseline where there is none."""
    accepted: TakenBundle | None = None
    history: list[TakenBundle] = []
    floor = 0
    for number, (offered, fate) in enumerate(offers):
        if fate == "store lost":
            accepted = None
        elif fate == "set back":
            accepted = history[0] if history else None
        refusal = check(accepted, floor, offered, f"digest {number}")
        if refusal is not None:
            continue
        assert offered.node == NODE
        assert offered.generation > floor
        current = in_force(accepted, floor)
        if current is None:
            assert offered.baseline
        else:
            assert offered.predecessor == current.bundle.generation
            assert offered.cluster == current.bundle.cluster
        new = TakenBundle(bundle=offered, digest=f"digest {number}")
        accepted = new if current is None else current.followed_by(offered, new.digest)
        history.append(accepted)
        floor = max(floor, offered.generation)


@given(bundles(), st.integers(0, 6))
def test_a_node_without_any_takes_a_baseline_above_its_counter_alone(offered: Bundle, floor: int) -> None:
    if check(None, floor, offered) is None:
        assert offered.baseline
        assert offered.generation > floor


@pytest.mark.parametrize(
    ("accepted", "floor", "offered", "refusal"),
    [
        (None, 0, bundle(1), None),
        (None, 0, bundle(7, 6, baseline=True), None),
        (None, 0, bundle(2, 1), BundleRefusal.NO_BASELINE),
        (None, 3, bundle(3), BundleRefusal.ROLLED_BACK),
        (None, 3, bundle(4), None),
        (taken(3), 3, bundle(4, 3), None),
        (taken(3), 3, bundle(9, 3), None),
        (taken(3), 3, bundle(5, 4), BundleRefusal.SKIPPED),
        (taken(3), 3, bundle(5, 2), BundleRefusal.SKIPPED),
        (taken(3), 3, bundle(9), BundleRefusal.SKIPPED),
        (taken(3), 3, bundle(2, 1), BundleRefusal.ROLLED_BACK),
        (taken(3), 3, bundle(3), BundleRefusal.CONTENT_CHANGED),
        (taken(3), 5, bundle(4, 3), BundleRefusal.NO_BASELINE),
        (taken(3), 5, bundle(6), None),
    ],
)
def test_each_order_has_its_answer(
    accepted: TakenBundle | None, floor: int, offered: Bundle, refusal: BundleRefusal | None
) -> None:
    assert check(accepted, floor, offered) is refusal


def test_what_is_in_force_may_come_again() -> None:
    assert check(taken(3), 3, bundle(3), "digest 3") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"document": assigned(3)},
        {"document": attrs.evolve(assigned(4), node=OTHERS[1])},
        {"document": attrs.evolve(assigned(4), cluster=OTHERS[0])},
        {"predecessor": 4},
        {"predecessor": 0},
        {"predecessor": None},
        {"schema": "lunanexa.bundle.v2"},
        {"blobs": (blob(path="../../etc/passwd"),)},
        {"blobs": (blob(path="blobs/sha256/" + "cd" * 32),)},
        {"blobs": (blob("AB" * 32),)},
        {"blobs": (blob("../" * 21 + "a"),)},
        {"blobs": (blob(size_bytes=-1),)},
        {"blobs": (blob(), blob())},
    ],
)
def test_what_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    offered = attrs.evolve(bundle(4, 3), **changes)
    assert check(taken(3), 3, offered) is BundleRefusal.INCONSISTENT


def test_a_bundle_for_another_is_told_apart() -> None:
    cluster, node = OTHERS
    for name, refusal in (
        ({"node": node}, BundleRefusal.OTHER_NODE),
        ({"cluster": cluster}, BundleRefusal.OTHER_CLUSTER),
    ):
        document = attrs.evolve(bundle(4).document, **name)
        assert check(taken(3), 3, bundle(4, 3, document=document, **name)) is refusal


@pytest.mark.parametrize(
    ("url", "refusal"),
    [
        ("http://127.0.0.1:11434", None),
        ("http://localhost:11434", None),
        ("http://192.0.2.7:11434", BundleRefusal.REACHES_OUT),
        ("http://inference.example", BundleRefusal.REACHES_OUT),
        ("http://[2001:db8::1]:80", BundleRefusal.REACHES_OUT),
    ],
)
def test_no_engine_elsewhere_is_adopted(url: str, refusal: BundleRefusal | None) -> None:
    assert check(taken(3), 3, bundle(4, 3, document=assigned(4, binary=None, url=url))) is refusal


def test_digests_of_what_was_in_force_are_bounded() -> None:
    current = taken(1)
    for generation in range(2, TAKEN_MAX + 10):
        current = current.followed_by(bundle(generation, generation - 1), f"digest {generation}")
    assert len(current.before) == TAKEN_MAX
    assert current.before[-1] == f"digest {TAKEN_MAX + 8}"


places = st.sampled_from([digit * 64 for digit in "abcd"])


@given(st.frozensets(places), st.frozensets(places), st.frozensets(places), st.frozensets(places))
def test_a_blob_is_needed_while_anything_names_it(
    brought: frozenset[str], written: frozenset[str], runs: frozenset[str], arguments: frozenset[str]
) -> None:
    document = assigned(2, arguments=tuple(f"--file=/srv/{blob_path(one)}" for one in sorted(written)))
    made = bundle(2, 1, document=document, blobs=tuple(blob(one) for one in brought))
    engines = [
        *(EngineSpec(driver="llama_cpp", served_name="a", model_path=f"/srv/{blob_path(one)}") for one in runs),
        *(EngineSpec(driver="llama_cpp", served_name="a", arguments=("-x", blob_path(one))) for one in arguments),
        EngineSpec(driver="reference", served_name="a", binary="/srv/blobs/sha256/" + "e" * 65),
    ]
    assert named_blobs(made, engines) == brought | written | runs | arguments


def test_a_fingerprint_is_of_a_key() -> None:
    assert key_fingerprint("00" * 32) == "66687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f2925"
    assert key_fingerprint("00" * 31) is None
    assert key_fingerprint("zz") is None
