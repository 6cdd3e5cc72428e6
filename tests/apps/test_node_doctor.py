"""What the doctor finds at a node, and what it advises."""

from collections.abc import Callable

import attrs
import pytest
from trio.testing import MockClock

from lunanexa_apps.node.check_config import check_config
from lunanexa_apps.node.doctor import Instruments, examine
from lunanexa_apps.node.findings import Finding, Verdict, any_problem, document_of
from lunanexa_apps.node.folder import NodeFolder, Way
from lunanexa_apps.node.plan import AgentPlan, Told
from lunanexa_apps.node.settings import NodePorts
from lunanexa_apps.node.started import note_start, read_start
from lunanexa_apps.node.token_file import TokenFile
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_ports.asgi import Receive, Scope, Send
from lunanexa_simulation.memory import SimulatedMemory
from lunanexa_simulation.private_files import PrivateFolder, SimulatedPrivateFiles
from tests.apps.node_world import NODE, NodeWorld, node_world
from tests.apps.tiny_controller import refuse

DAY_MS = 86_400_000
AGENT = "an agent"
LISTEN = HostPort("10.0.0.7", 8410)


@pytest.fixture
def clock() -> MockClock:
    """Time passes only when every task waits."""
    return MockClock(autojump_threshold=0)


async def enrolled(world: NodeWorld, *, data_address: str | None = "10.0.0.7:8410") -> None:
    await world.start(data_address=data_address)
    await world.controller.until(lambda: world.controller.heartbeats)


async def started(
    world: NodeWorld, *, controller: str = "controller", listen: HostPort | None = LISTEN, holder: str = AGENT
) -> None:
    """As an agent notes it that runs, and was told so."""
    address = EngineAddress(controller, 8400)
    plan = AgentPlan(node=NODE, controllers=(address,), data_address=LISTEN, data_listen=listen)
    await note_start(world.parts().ports.store, holder, plan)


def way_of(ports: NodePorts) -> Way:
    return Way(ports.credentials, ports.control)


async def look(
    world: NodeWorld,
    told: Told | None = None,
    *,
    taken: str | None = "Address already in use",
    folder: Callable[[NodeFolder], NodeFolder] = lambda folder: folder,
    instruments: Callable[[Instruments], Instruments] = lambda found: found,
) -> dict[str, Finding]:
    parts = world.parts()
    seen = NodeFolder(
        place="/data",
        store=parts.ports.store,
        way=lambda: way_of(parts.ports),
        holder=AGENT,
        free_mib=50_000,
    )
    with_ = Instruments(
        clock=world.clock,
        memory=world.memory,
        signer=parts.ports.signer,
        find_devices=lambda: ("NVIDIA GB10",),
        address_towards=lambda _: None,
        why_not_listen=lambda _: taken,
    )
    found = await examine(folder(seen), told or Told(), instruments(with_), "test")
    assert len({one.step for one in found}) == len(found)
    return {one.step: one for one in found}


def alone(folder: NodeFolder) -> NodeFolder:
    """Without the agent."""
    return attrs.evolve(folder, holder=None)


def problems(found: dict[str, Finding]) -> dict[str, str]:
    return {step: one.found for step, one in found.items() if one.verdict is Verdict.PROBLEM}


async def test_a_node_that_is_well(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await enrolled(world)
        found = await look(world)
        assert not any_problem(list(found.values()))
        assert found["devices"].found == "NVIDIA GB10"
        assert found["controller"].found.endswith("it knows this node")
        document = document_of(list(found.values()))
        assert isinstance(document, dict)
        assert document["ok"] is True


async def test_a_machine_that_is_no_node_is_told_how_it_becomes_one(clock: MockClock) -> None:
    async with node_world(clock) as world:
        found = await look(world)
        assert list(problems(found)) == ["enrolment"]
        assert "lunanexa node token" in (found["enrolment"].fix or "")
        assert not world.controller.asked


@pytest.mark.parametrize(
    ("step", "told", "spoil"),
    [
        ("clock", "before this node's certificate", lambda world: world.clock.jump_wall(-3 * DAY_MS)),
        ("certificate", "it has expired", lambda world: world.clock.jump_wall(3 * DAY_MS)),
        ("controller", "403 permission_denied", lambda world: setattr(world.controller, "unknown", True)),
        ("controller", "connection refused", lambda world: world.network.refuse("controller", 8400)),
        ("authority", "no authority is trusted", lambda world: setattr(world.identity, "trusted", ())),
        ("certificate", "there is none", lambda world: setattr(world.identity, "chain", None)),
    ],
)
async def test_what_is_wrong_is_told_at_its_step(
    clock: MockClock, step: str, told: str, spoil: Callable[[NodeWorld], None]
) -> None:
    async with node_world(clock) as world:
        await enrolled(world)
        world.newest.kill()
        spoil(world)
        found = await look(world)
        assert told in problems(found)[step]
        assert found[step].fix


async def test_what_the_machine_lacks_is_told(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await enrolled(world)
        memory = SimulatedMemory(1_000, 200)
        memory.readable = False
        found = await look(
            world,
            folder=lambda folder: attrs.evolve(folder, free_mib=3, open_to_others=("/data/node/secrets/node.key",)),
            instruments=lambda found: attrs.evolve(found, memory=memory, signer=None, find_devices=lambda: "no NVML"),
        )
        assert set(problems(found)) == {"memory", "disk", "data directory", "signing key"}
        assert found["devices"].verdict is Verdict.NOTE


async def test_the_data_listener_is_open_while_an_agent_runs_and_free_when_none_does(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await enrolled(world)
        assert not problems(await look(world, taken=None)), "who runs there may only begin, or be one round"
        await started(world)
        assert "data listener" in problems(await look(world, taken=None))
        assert not problems(await look(world, taken=None, folder=alone))
        assert "data listener" in problems(await look(world, folder=alone))


async def test_an_agent_listens_where_it_was_told_at_its_start(clock: MockClock) -> None:
    tried: list[HostPort] = []

    def why_not(place: HostPort) -> str:
        tried.append(place)
        return "Address already in use"

    async with node_world(clock) as world:
        await enrolled(world)
        await started(world, listen=HostPort("0.0.0.0", 9_000))
        found = await look(world, instruments=lambda with_: attrs.evolve(with_, why_not_listen=why_not))
        assert tried == [HostPort("0.0.0.0", 9_000)]
        assert not problems(found)
        for told in (Told(data_listen=LISTEN), Told(no_data_listener=True)):
            found = await look(world, told)
            assert "was told to listen at 0.0.0.0:9000" in problems(found)["data listener"]
        await started(world, listen=None)
        assert "none" in (await look(world))["data listener"].found
        assert "was told to have none" in problems(await look(world, Told(data_listen=LISTEN)))["data listener"]


async def test_the_controllers_of_the_agent_that_runs_are_asked_and_not_those_of_its_enrolment(
    clock: MockClock,
) -> None:
    """As beside ``lunanexa up``, whose controller has another port at each start."""
    async with node_world(clock) as world:
        await enrolled(world)
        world.network.close("controller", 8400)
        world.serve(world.controller, "moved")
        assert "https://controller:8400" in problems(await look(world))["controller"]
        await started(world, controller="moved", holder="an earlier agent")
        assert "https://controller:8400" in problems(await look(world))["controller"]
        await started(world, controller="moved")
        found = await look(world)
        assert found["controller"].found.startswith("https://moved:8400: TLS is mutual")
        assert not problems(found)
        named = await look(world, Told(controllers=(EngineAddress("controller", 8400),)))
        assert "https://controller:8400" in problems(named)["controller"]
        assert "https://controller:8400" in problems(await look(world, taken=None, folder=alone))["controller"]


async def test_beside_up_a_controller_that_is_away_is_a_matter_of_up(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await enrolled(world)
        world.network.refuse("controller", 8400)

        def of_up(folder: NodeFolder) -> NodeFolder:
            return attrs.evolve(folder, of_up=True, place="/my data")

        assert "lunanexa status --data-dir '/my data'" in ((await look(world, folder=of_up))["controller"].fix or "")
        stopped = await look(world, taken=None, folder=lambda folder: alone(of_up(folder)))
        assert "lunanexa up --data-dir '/my data'" in (stopped["controller"].fix or "")
        assert "--node-listen" in ((await look(world))["controller"].fix or "")


async def test_a_controller_that_does_not_lead_is_no_problem(clock: MockClock) -> None:
    async def standby(_: Scope, __: Receive, send: Send, /) -> None:
        await refuse(send, 503, "not_leader")

    async with node_world(clock) as world:
        await enrolled(world)
        world.network.close("controller", 8400)
        world.serve(world.controller, app=standby)
        found = await look(world)
        assert not problems(found)
        assert "not_leader" in found["controller"].found


async def test_the_configuration_is_checked_without_asking_anybody(clock: MockClock) -> None:
    async with node_world(clock) as world:
        parts, private = world.parts(), PrivateFolder()
        files = SimulatedPrivateFiles(private)
        file = TokenFile(files, "token")
        folder = NodeFolder(
            place="/data", store=parts.ports.store, way=lambda: way_of(parts.ports), holder=None, free_mib=1
        )

        async def checked(told: Told, taken: str | None = None) -> dict[str, Finding]:
            found = await check_config(
                folder, told, file, address_towards=lambda _: "10.0.0.7", why_not_listen=lambda _: taken
            )
            return {one.step: one for one in found}

        named = Told(controllers=(EngineAddress("10.0.0.1", 1),))
        assert "--token-file" in problems(await checked(named))
        files.replace("token", b"lnxnode1_nonsense")
        assert "holds no enrolment token" in problems(await checked(named))["--token-file"]
        assert world.token is not None
        files.replace("token", attrs.evolve(world.token, loopback=False).line().encode())
        found = await checked(named)
        assert not problems(found)
        assert (found["node"].found, found["data address"].found) == (NODE, "10.0.0.7:8410")
        assert "can't be had: taken" in problems(await checked(named, "taken"))["data listener"]
        assert problems(await checked(Told())).keys() == {"--controller"}
        assert world.token.secret not in str(found)
        assert not world.controller.asked


async def test_an_agent_whose_store_is_full_starts_without_a_note(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await enrolled(world)
        await started(world, controller="moved")
        world.disk.faults.full = True
        await started(world, holder="the next agent")
        store = world.parts().ports.store
        assert await read_start(store, "the next agent") is None
        kept = await read_start(store, AGENT)
        assert kept is not None
        assert kept.controllers == ("https://moved:8400",)
