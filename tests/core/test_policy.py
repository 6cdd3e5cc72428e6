"""The policy of a machine's owner: what it lets be run, and what it stops."""

from pathlib import PurePosixPath

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_core.ids import AssignmentId
from lunanexa_core.lifecycle.reconcile import (
    NodeAction,
    RefuseAssignment,
    StartReplica,
    StopCause,
    StopReplica,
    StopStray,
    reconcile,
)
from lunanexa_core.lifecycle.record import Ending, ReplicaRecord
from lunanexa_core.nodes.policy import NO_RULES, NodePolicy, PolicyRefusal, policy_refusal
from lunanexa_core.southbound.documents import DesiredAssignment, DesiredState
from lunanexa_core.southbound.heartbeat import ReplicaState
from tests.core.test_reconcile import assignment, document, records, running
from tests.examples import examples


def changed(name: str = "a", generation: int = 1, **changes: object) -> DesiredAssignment:
    one = assignment(name, generation)
    return attrs.evolve(one, engine=attrs.evolve(one.engine, **changes))  # type: ignore[arg-type]  # the test's business


def adopted(url: str, name: str = "a") -> DesiredAssignment:
    return changed(name, binary=None, url=url)


PARTS = st.lists(st.sampled_from(["opt", "bin", "engines", "..", ".", "", "opt2", "engine"]), max_size=5)
PATHS = st.builds(lambda absolute, parts: absolute * "/" + "/".join(parts), st.booleans(), PARTS)
ENGINES = st.builds(
    changed,
    binary=st.none() | PATHS,
    url=st.none() | st.sampled_from(["http://127.0.0.1:1", "http://other:1", "https://x", ""]),
    driver=st.sampled_from(["reference", "vllm", "unheard-of"]),
    arguments=st.lists(st.sampled_from(["--lora", "-m", "x"])).map(tuple),
    memory_limit_mib=st.none() | st.integers(-5, 100),
)


@given(ENGINES)
def test_without_rules_everything_is_allowed(one: DesiredAssignment) -> None:
    assert policy_refusal(NO_RULES, one, beside=[changed("b")] * 3) is None


@given(ENGINES)
def test_empty_lists_allow_nothing(one: DesiredAssignment) -> None:
    assert policy_refusal(NodePolicy(drivers=()), one) is PolicyRefusal.DRIVER
    starts, adopts = one.engine.binary is not None, one.engine.url is not None
    assert (policy_refusal(NodePolicy(programs=()), one) is PolicyRefusal.PROGRAM) == starts
    assert (policy_refusal(NodePolicy(adopted=()), one) is PolicyRefusal.ADOPTED) == adopts
    assert policy_refusal(NodePolicy(replicas=0), one) is PolicyRefusal.REPLICAS


@given(PATHS)
def test_no_path_leads_out_of_what_is_allowed(path: str) -> None:
    refusal = policy_refusal(NodePolicy(programs=("/opt/engines/", "/bin/engine")), changed(binary=path))
    plain = path.startswith("/") and str(PurePosixPath(path)) == path and ".." not in PurePosixPath(path).parts
    inside = PurePosixPath("/opt/engines") in PurePosixPath(path).parents or path == "/bin/engine"
    assert refusal is (None if plain and inside else PolicyRefusal.PROGRAM)


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://127.0.0.1:11434", True),
        ("http://127.0.0.1:11434/", True),
        ("http://127.0.0.1:11435", False),
        ("http://GPU-2.lan:80", True),
        ("http://gpu-2.lan:9", True),
        ("http://gpu-2.lan.evil:9", False),
        ("http://[::1]:9", True),
        ("https://127.0.0.1:11434", False),
        ("http://127.0.0.1:11434@evil:1", False),
    ],
)
def test_servers_are_adopted_where_the_owner_says(url: str, allowed: bool) -> None:
    policy = NodePolicy(adopted=("http://127.0.0.1:11434", "gpu-2.lan", "::1"))
    assert policy.fault() is None
    assert policy_refusal(policy, adopted(url)) is (None if allowed else PolicyRefusal.ADOPTED)


def test_arguments_and_drivers() -> None:
    policy = NodePolicy(drivers=("reference",), arguments_refused=("--lora", "--host"))
    assert policy_refusal(policy, changed(arguments=("-c", "--no-lora"))) is None
    assert policy_refusal(policy, changed(arguments=("-c", "--host=0.0.0.0"))) is PolicyRefusal.ARGUMENT
    assert policy_refusal(policy, changed(driver="llama_cpp")) is PolicyRefusal.DRIVER


def test_with_a_ceiling_each_engine_must_say_what_it_may_hold() -> None:
    policy = NodePolicy(memory_mib=100)
    for none in (None, 0, -100):
        assert policy_refusal(policy, changed(memory_limit_mib=none)) is PolicyRefusal.NO_MEMORY_LIMIT
    assert policy_refusal(policy, adopted("http://x:1")) is None
    own, other = changed(memory_limit_mib=60), changed("b", memory_limit_mib=40)
    assert policy_refusal(policy, own, beside=[other, adopted("http://x:1", "c")]) is None
    assert policy_refusal(policy, own, beside=[other, changed("c", memory_limit_mib=1)]) is PolicyRefusal.MEMORY
    assert policy_refusal(policy, own, beside=[changed("b")]) is PolicyRefusal.MEMORY
    former = changed(generation=1, memory_limit_mib=60)
    assert policy_refusal(policy, changed(generation=2, memory_limit_mib=50), beside=[former, other]) is None


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (NodePolicy(programs=("/bin/x", "bin/x")), "programs[1]"),
        (NodePolicy(programs=("/opt/../bin/",)), "programs[0]"),
        (NodePolicy(programs=("/",)), "programs[0]"),
        (NodePolicy(drivers=("llamacpp",)), "drivers[0]"),
        (NodePolicy(adopted=("https://x:1",)), "adopted[0]"),
        (NodePolicy(arguments_refused=("--x", "")), "arguments_refused[1]"),
        (NodePolicy(memory_mib=0), "memory_mib"),
        (NodePolicy(replicas=-1), "replicas"),
        (NodePolicy(authority="A" * 64), "authority"),
    ],
)
def test_a_rule_that_means_nothing_is_named(policy: NodePolicy, field: str) -> None:
    fault = policy.fault()
    assert fault is not None
    assert fault[0] == field


def test_a_rule_that_means_something_has_no_fault() -> None:
    assert NO_RULES.fault() is None
    assert (
        NodePolicy(programs=("/opt/x/", "/bin/y"), drivers=("vllm",), replicas=0, authority="0a" * 32).fault() is None
    )


# --- among what runs ---


def test_one_that_is_forbidden_stops_no_other() -> None:
    wanted = document(changed("a", binary="/bin/sh"), assignment("b"))
    assert reconcile(wanted, {}, (), policy=NodePolicy(programs=("/bin/engine",))) == (
        RefuseAssignment(AssignmentId("a"), PolicyRefusal.PROGRAM),
        StartReplica(assignment("b")),
    )


@pytest.mark.parametrize("wanted", [document(assignment("a")), document(assignment("a", served_name="x")), None])
def test_what_runs_and_is_forbidden_is_stopped_whatever_is_said_of_it(wanted: DesiredState | None) -> None:
    actions = reconcile(wanted, records(running("a")), (), policy=NodePolicy(programs=()))
    assert actions[0] == StopReplica(AssignmentId("a"), StopCause.POLICY)
    assert not any(isinstance(action, StartReplica) for action in actions)
    stopping = running("a", state=ReplicaState.STOPPING, ending=Ending.ABSENT)
    again = reconcile(wanted, records(stopping), (), policy=NodePolicy(programs=()))
    assert all(isinstance(action, RefuseAssignment) for action in again)


def test_of_too_many_the_wanted_ones_go_on_and_new_ones_wait_for_their_room() -> None:
    present = records(running("a"), running("b"))
    policy = NodePolicy(replicas=1)
    wanted = document(assignment("0"), assignment("b"))
    assert reconcile(wanted, present, (), policy=policy) == (
        StopReplica(AssignmentId("a"), StopCause.POLICY),
        RefuseAssignment(AssignmentId("0"), PolicyRefusal.REPLICAS),
    )
    del present[AssignmentId("a")]
    assert reconcile(wanted, present, (), policy=policy) == (
        RefuseAssignment(AssignmentId("0"), PolicyRefusal.REPLICAS),
    )


def test_a_newer_generation_that_is_forbidden_leaves_the_older_one() -> None:
    wanted = document(changed("a", 2, binary="/bin/sh"))
    assert reconcile(wanted, records(running("a")), (), policy=NodePolicy(programs=("/bin/engine",))) == (
        RefuseAssignment(AssignmentId("a"), PolicyRefusal.PROGRAM),
    )


CEILING_MIB, MOST = 10, 3
DOCUMENTS = st.lists(
    st.lists(
        st.tuples(st.sampled_from("abcde"), st.none() | st.integers(-1, 12)), max_size=5, unique_by=lambda one: one[0]
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=examples(40))
@given(DOCUMENTS, st.data())
def test_the_sums_hold_at_every_moment_and_every_world_settles(
    documents: list[list[tuple[str, int | None]]], data: st.DataObject
) -> None:
    policy = NodePolicy(memory_mib=CEILING_MIB, replicas=MOST)
    present: dict[AssignmentId, ReplicaRecord] = {}
    wanted = document()
    for number, listed in enumerate(documents, 1):
        wanted = document(*(changed(name, number, memory_limit_mib=limit) for name, limit in listed))
        for _ in range(data.draw(st.integers(1, 3))):
            carry_out(present, reconcile(wanted, present, (), policy=policy))
            assert len(present) <= MOST
            assert sum(record.assignment.engine.memory_limit_mib or 99 for record in present.values()) <= CEILING_MIB
            if data.draw(st.booleans()):
                end_those_that_stop(present)
    for _ in range(4):
        end_those_that_stop(present)
        carry_out(present, reconcile(wanted, present, (), policy=policy))
    assert all(isinstance(action, RefuseAssignment) for action in reconcile(wanted, present, (), policy=policy))


def carry_out(present: dict[AssignmentId, ReplicaRecord], actions: tuple[NodeAction, ...]) -> None:
    """What is told to stop takes its time."""
    for action in actions:
        match action:
            case StopReplica(assignment=name):
                present[name] = attrs.evolve(present[name], state=ReplicaState.STOPPING, ending=Ending.ABSENT)
            case StartReplica(assignment=new):
                assert new.assignment not in present, "started beside an older one"
                present[new.assignment] = attrs.evolve(running(new.assignment), assignment=new)
            case StopStray() | RefuseAssignment():
                pass


def end_those_that_stop(present: dict[AssignmentId, ReplicaRecord]) -> None:
    for name in [name for name, record in present.items() if record.ending is Ending.ABSENT]:
        del present[name]
