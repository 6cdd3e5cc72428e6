"""The policy of a machine's owner: its file, and the agent that goes by it."""

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from lunanexa_apps.node.findings import Verdict
from lunanexa_apps.node.policy_file import OwnersPolicy, parse_policy
from lunanexa_core.ids import AssignmentId
from lunanexa_core.nodes.policy import NO_RULES, NodePolicy, PolicyRefusal
from lunanexa_core.southbound.heartbeat import RefusedAssignment, ReplicaState
from lunanexa_ports.errors import PortFault
from tests.apps.node_world import BINARY, NodeWorld, assignment, node_world

PLACE = "/etc/lunanexa/node-policy.toml"
ALL = """
programs = ["/opt/engines/", "/usr/bin/llama-server"]
drivers = ["llama_cpp"]
adopted = []
arguments_refused = ["--host"]
memory_mib = 65536
replicas = 4
authority = "{key}"
"""


def test_a_file_is_read_whole() -> None:
    assert parse_policy(PLACE, ALL.format(key="ab" * 32).encode()) == NodePolicy(
        programs=("/opt/engines/", "/usr/bin/llama-server"),
        drivers=("llama_cpp",),
        adopted=(),
        arguments_refused=("--host",),
        memory_mib=65_536,
        replicas=4,
        authority="ab" * 32,
    )
    assert parse_policy(PLACE, b"") == NO_RULES


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("program = []", "unknown key 'program'; there are programs, "),
        ('programs = "/bin/x"', "programs must be an array of strings, and it is a string"),
        ("programs = [1]", "programs must be an array of strings"),
        ("memory_mib = true", "memory_mib must be an integer, and it is a boolean"),
        ("authority = 1", "authority must be a string"),
        ('drivers = ["llama"]', r"drivers\[0\] must be one of reference, llama_cpp"),
        ("replicas = ", "is not TOML"),
        ("\udcff", "is not TOML"),
        ("replicas = " + "[" * 5_000, "is not TOML"),
    ],
)
def test_an_error_names_file_key_and_what_must_be_there(text: str, words: str) -> None:
    with pytest.raises(PortFault, match=words) as error:
        parse_policy(PLACE, text.encode(errors="surrogateescape"))
    assert PLACE in str(error.value)


@given(st.text() | st.sampled_from(list(attrs.fields_dict(NodePolicy))).map(lambda name: f"{name} = 1979-05-27"))
def test_no_text_is_taken_for_rules_that_it_does_not_hold(text: str) -> None:
    try:
        found = parse_policy(PLACE, text.encode(errors="replace"))
    except PortFault:
        return
    assert found == NO_RULES


def test_the_rules_are_shown() -> None:
    shown = OwnersPolicy(PLACE, NodePolicy(programs=("/a/", "/b"), adopted=(), replicas=2)).describe()
    assert shown.found == f"{PLACE}: programs /a/, /b; adopted none; replicas 2"
    assert OwnersPolicy(PLACE, NO_RULES).describe().found == f"{PLACE}: no rule"
    assert OwnersPolicy(PLACE, None).describe().verdict is Verdict.NOTE


# --- the agent ---


@pytest.fixture
def clock() -> MockClock:
    """Time passes only when every task waits."""
    return MockClock(autojump_threshold=0)


def refused(**by_name: PolicyRefusal) -> tuple[RefusedAssignment, ...]:
    return tuple(
        RefusedAssignment(assignment=AssignmentId(name), refusal=refusal.value) for name, refusal in by_name.items()
    )


async def until_refused(world: NodeWorld, **by_name: PolicyRefusal) -> None:
    beats = world.controller.heartbeats
    await world.controller.until(lambda: beats and beats[-1].refused == refused(**by_name))


async def test_what_the_owner_forbids_is_not_started_and_told_and_stops_nothing_else(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.policy = NodePolicy(programs=(BINARY,), arguments_refused=("--host",))
        await world.start()
        world.controller.desire(
            assignment("sh", binary="/bin/sh"), assignment("open", arguments=("--host", "0.0.0.0")), assignment()
        )
        await world.controller.until_state(ReplicaState.READY)
        await until_refused(world, sh=PolicyRefusal.PROGRAM, open=PolicyRefusal.ARGUMENT)
        await trio.sleep(60)
        assert [process.argv[0] for process in world.host.living()] == [BINARY]
        assert len(world.engine.started) == 1
        sent = len(world.controller.heartbeats)
        await world.controller.until(lambda: len(world.controller.heartbeats) > sent)
        world.controller.desire(assignment())
        await until_refused(world)
        assert len(world.host.living()) == 1


async def test_what_runs_is_stopped_when_the_next_agent_finds_that_it_may_not(clock: MockClock) -> None:
    async with node_world(clock) as world:
        first = await world.start()
        world.controller.desire(assignment(), assignment("as_2"))
        await world.controller.until_state(ReplicaState.READY)
        await world.controller.until_state(ReplicaState.READY, "as_2")
        before = world.controller.report()
        assert before is not None
        first.kill()
        await first.ended.wait()
        assert len(world.host.living()) == 2
        world.policy = NodePolicy(replicas=1)
        await world.start()
        await world.controller.until_state(ReplicaState.ABSENT, "as_2")
        await until_refused(world, as_2=PolicyRefusal.REPLICAS)
        assert [process.log_name for process in world.host.living()] == ["as_1.log"]
        report = world.controller.report()
        assert report is not None
        assert report.state is ReplicaState.READY
        assert report.start == before.start


async def test_what_runs_and_may_not_is_stopped_without_a_controller_too(clock: MockClock) -> None:
    async with node_world(clock) as world:
        first = await world.start()
        world.controller.desire(assignment())
        await world.controller.until_state(ReplicaState.READY)
        first.kill()
        await first.ended.wait()
        world.network.refuse("controller", 8400)
        world.policy = NodePolicy(programs=())
        await world.start()
        await trio.sleep(120)
        assert world.host.living() == []
        assert len(world.engine.started) == 1


async def test_one_that_waits_for_the_room_of_another_starts_when_that_is_gone(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.policy = NodePolicy(memory_mib=500)
        await world.start()
        world.controller.desire(assignment(memory_limit_mib=300), assignment("none"))
        await world.controller.until_state(ReplicaState.READY)
        await until_refused(world, none=PolicyRefusal.NO_MEMORY_LIMIT)
        world.controller.desire(assignment(memory_limit_mib=300), assignment("as_2", memory_limit_mib=300))
        await until_refused(world, as_2=PolicyRefusal.MEMORY)
        world.controller.desire(assignment("as_2", memory_limit_mib=300))
        await world.controller.until_state(ReplicaState.READY, "as_2")
        await until_refused(world)


async def test_a_server_that_may_not_be_adopted_is_not_asked(clock: MockClock) -> None:
    async with node_world(clock) as world:
        asked: list[str] = []

        async def server(*_: object) -> None:
            asked.append("it")

        world.network.listen("10.0.0.9", 80, server)
        world.policy = NodePolicy(adopted=("127.0.0.1",))
        await world.start()
        world.controller.desire(assignment(binary=None, url="http://10.0.0.9"))
        await until_refused(world, as_1=PolicyRefusal.ADOPTED)
        await trio.sleep(30)
        assert not asked


async def test_a_round_with_something_refused_is_not_well(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.policy = NodePolicy(drivers=("llama_cpp",))
        world.controller.desire(assignment())
        done = await world.round()
        assert done.settled
        assert not done.well
        assert done.refused == refused(as_1=PolicyRefusal.DRIVER)
