"""``lunanexa up`` over simulated children, a scripted controller and a driven clock."""

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from lunanexa_apps.installation import NODE_IDENTITY, NODE_TOKEN, Installation
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_apps.up.choice import Chosen, EngineChoice
from lunanexa_apps.up.engine_choice import DEPLOYMENT
from lunanexa_apps.up.ready_file import ReadyFile
from lunanexa_apps.up.screen import Announcement, Failure, Screen
from lunanexa_apps.up.service import UpPlan, run_up
from lunanexa_apps.up.supervisor import ChildEnded
from lunanexa_core.deployment import EngineSpec
from lunanexa_core.ids import Alias, DeploymentId
from lunanexa_ports.children import ChildOrder
from lunanexa_ports.http_client import HttpRequest, HttpUnreachable
from lunanexa_simulation.children import SimulatedChild, SimulatedChildren, serve_until_terminated
from lunanexa_simulation.private_files import PrivateFolder, SimulatedPrivateFiles
from tests.apps.scripted_http import Reply, ScriptedHttp

Program = Callable[[SimulatedChild], Awaitable[int]]


@pytest.fixture
def clock() -> MockClock:
    """Virtual time, which runs only while every task waits."""
    return MockClock(autojump_threshold=0)


class RecordingScreen(Screen):
    def __init__(self) -> None:
        self.progressed: list[str] = []
        self.notes: list[str] = []
        self.ends: list[ChildEnded] = []
        self.announcement: Announcement | None = None
        self.failure: Failure | None = None
        self.served = trio.Event()

    def progress(self, text: str) -> None:
        if text not in self.progressed[-1:]:
            self.progressed.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def child_ended(self, end: ChildEnded) -> None:
        self.ends.append(end)

    def serving(self, announcement: Announcement) -> None:
        self.announcement = announcement
        self.served.set()

    def failed(self, failure: Failure) -> None:
        self.failure = failure

    def settled(self) -> None:
        pass


class Rig:
    """Everything around ``run_up``. The controller answers while its process lives; the engine's state is set
    by the test."""

    def __init__(self, nursery: trio.Nursery, clock: MockClock) -> None:
        self.clock = clock
        self.programs: dict[str, Program] = {"controller": serve_until_terminated, "node": serve_until_terminated}
        self.children = SimulatedChildren(nursery, self.programs)
        self.http = ScriptedHttp(self._answer)
        self.screen = RecordingScreen()
        self.send, self.interrupts = trio.open_memory_channel[int](8)
        self.heartbeat_age_ms: int | None = 100
        self.replica: dict[str, Any] = {
            "node": "local",
            "generation": 1,
            "state": "ready",
            "pid": 77,
            "restarts": 0,
            "exit": None,
        }
        self.in_flight = [0]
        self.deployed: dict[str, Any] | None = None
        self.refuse_deployment: Reply | None = None
        self.enrolled = False
        self.refuse_token: Reply | None = None
        self.data = PrivateFolder(path="/data")
        self.left_over = ["adopted-old", "default", "of-an-operator"]
        self.serves_second = False
        self.folder = PrivateFolder(path="/run")
        self.code: int | None = None
        self.plan = UpPlan(
            data_dir="/data",
            installation=Installation(
                api_key="lnx_key",
                operator_token="operator",
                api_key_file="/data/api_key",
                operator_token_file="/data/operator_token",
            ),
            listen=HostPort("0.0.0.0", 8400),
            chosen=Chosen(
                engines=(
                    EngineChoice(
                        deployment=DEPLOYMENT,
                        alias=Alias("moon"),
                        engine=EngineSpec(driver="reference", served_name="moon", binary="/bin/engine"),
                    ),
                ),
                description="an engine",
            ),
            controller=ChildOrder(name="controller", argv=("controller",), environment={}),
            node=ChildOrder(name="node", argv=("node",), environment={}),
        )

    async def run(self) -> None:
        with trio.fail_after(3600):
            self.code = await run_up(
                self.plan,
                files=SimulatedPrivateFiles(self.data),
                children=self.children,
                http=self.http,
                interrupts=self.interrupts,
                screen=self.screen,
                ready_file=ReadyFile(SimulatedPrivateFiles(self.folder), "ready.json"),
            )

    @contextmanager
    def finished(self, code: int) -> Iterator[None]:
        yield
        assert self.code == code
        assert self.folder.files == {}

    def alive(self, name: str) -> list[SimulatedChild]:
        return [child for child in self.children.started if child.order.name == name and child.running]

    def ready(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.folder.files["ready.json"])
        return document

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(3600):
            while not condition():
                await trio.sleep(0.05)

    def _answer(self, request: HttpRequest) -> Reply:
        assert (request.host, request.port) == ("127.0.0.1", 8400)
        if not self.alive("controller"):
            raise HttpUnreachable("refused")
        token = dict(request.headers).get(b"authorization")
        match (request.method, request.target):
            case ("GET", "/admin/v1/deployments"):
                return reply({"data": [{"spec": {"deployment": name}, "generation": 1} for name in self.left_over]})
            case ("DELETE", target):
                self.left_over.remove(target.removeprefix("/admin/v1/deployments/"))
                return reply({"removed": True})
            case ("PUT", "/admin/v1/deployments/adopted-sea"):
                assert "adopted-old" not in self.left_over, "one that is wanted may have its alias"
                return reply({"deployment": "adopted-sea", "generation": 1})
            case ("PUT", "/admin/v1/deployments/default"):
                assert token == b"Bearer operator"
                if self.refuse_deployment is not None:
                    return self.refuse_deployment
                self.deployed = json.loads(request.body)
                return reply({"deployment": "default", "generation": 1})
            case ("GET", "/admin/v1/nodes/local"):
                return reply({"node": "local", "enrolled": self.enrolled})
            case ("POST", "/admin/v1/nodes/local/token"):
                assert json.loads(request.body) == {"again": True, "loopback": True}
                return self.refuse_token or reply({"line": "lnxnode1_token"})
            case ("GET", "/v1/models"):
                assert token == b"Bearer lnx_key"
                serves = self.deployed is not None and self.alive("node") and self.replica["state"] == "ready"
                second = [{"id": "sea"}] if self.serves_second else []
                return reply({"data": [{"id": "moon"}, *second] if serves else []})
            case ("GET", "/admin/v1/status"):
                entry = {"deployment": "default", "generation": 1, "replicas": [self.replica]}
                node = {"node": "local", "heartbeat_age_ms": self.heartbeat_age_ms}
                return reply({"nodes": [node], "deployments": [entry] if self.deployed else []})
            case ("POST", "/admin/v1/drain"):
                count = self.in_flight.pop(0) if len(self.in_flight) > 1 else self.in_flight[0]
                return reply({"draining": True, "in_flight": count})
            case other:
                raise AssertionError(other)


def reply(document: object) -> Reply:
    return Reply(200, [json.dumps(document).encode()])


@pytest.fixture
def rig(nursery: trio.Nursery, clock: MockClock) -> Rig:
    return Rig(nursery, clock)


async def test_it_serves_drains_and_ends_in_order(rig: Rig, clock: MockClock) -> None:
    assert rig.clock is clock
    rig.in_flight = [2, 1, 0]
    endings: list[str] = []

    def ending(name: str) -> Program:
        async def program(child: SimulatedChild) -> int:
            await child.wait_terminated()
            await trio.sleep(3)
            endings.append(name)
            return 0

        return program

    rig.programs.update(controller=ending("controller"), node=ending("node"))
    with rig.finished(0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.run)
            await rig.screen.served.wait()
            assert rig.ready() == {
                "base_url": "http://127.0.0.1:8400/v1",
                "api_key": "lnx_key",
                "operator_token": "operator",
                "model": "moon",
                "models": ["moon"],
                "pids": {"controller": 1000, "node": 1001, "engine": 77},
            }
            rig.send.send_nowait(2)
    assert endings == ["node", "controller"]
    assert rig.data.files == {NODE_TOKEN: b"lnxnode1_token\n"}
    assert rig.deployed is not None
    assert rig.left_over == ["default", "of-an-operator"]
    assert "deployment" not in rig.deployed
    assert rig.deployed["alias"] == "moon"
    assert rig.screen.announcement is not None
    assert rig.screen.announcement.base_url == "http://127.0.0.1:8400/v1"
    said = "\n".join(rig.screen.progressed)
    assert "waiting for 2 requests in flight" in said
    assert "waiting for 1 request in flight" in said
    assert "stopping the node agent and its engines" in said


@pytest.mark.parametrize(("has_identity", "enrolled"), [(True, True), (True, False), (False, True)])
async def test_a_node_is_given_a_token_where_it_or_the_controller_lacks_its_identity(
    rig: Rig, clock: MockClock, has_identity: bool, enrolled: bool
) -> None:
    assert rig.clock is clock
    rig.enrolled = enrolled
    if has_identity:
        rig.data.files[NODE_IDENTITY] = b"pem"
    with rig.finished(0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.run)
            await rig.screen.served.wait()
            assert (NODE_TOKEN in rig.data.files) == (not (has_identity and enrolled))
            rig.send.send_nowait(2)


async def test_a_node_with_an_identity_starts_while_another_controller_leads(rig: Rig, clock: MockClock) -> None:
    assert rig.clock is clock
    rig.data.files[NODE_IDENTITY] = b"pem"
    rig.refuse_token = Reply(503, [b'{"error": {"code": "not_leader", "message": "another leads"}}'])
    with rig.finished(0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.run)
            await rig.until(lambda: bool(rig.alive("node")))
            assert NODE_TOKEN not in rig.data.files
            rig.send.send_nowait(2)


async def test_a_node_without_one_waits_for_a_leader(rig: Rig, clock: MockClock) -> None:
    assert rig.clock is clock
    rig.refuse_token = Reply(503, [b'{"error": {"code": "not_leader", "message": "another leads"}}'])
    with rig.finished(0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.run)
            waiting = "waiting until the controller can take this machine's node in"
            await rig.until(lambda: waiting in rig.screen.progressed)
            assert not rig.alive("node")
            rig.refuse_token = None
            await rig.screen.served.wait()
            rig.send.send_nowait(2)


async def test_a_refused_token_ends_up(rig: Rig, clock: MockClock) -> None:
    assert rig.clock is clock
    rig.refuse_token = Reply(403, [b'{"error": {"code": "permission_denied", "message": "not yours"}}'])
    with rig.finished(77):
        await rig.run()
    assert rig.screen.failure is not None
    assert rig.screen.failure.message == "the controller mints no token for this machine's node: not yours"


async def test_all_models_must_be_served(rig: Rig, clock: MockClock) -> None:
    sea = EngineChoice(
        deployment=DeploymentId("adopted-sea"),
        alias=Alias("sea"),
        engine=EngineSpec(driver="ollama", served_name="sea", url="http://127.0.0.1:11434"),
    )
    chosen = rig.plan.chosen
    rig.plan = attrs.evolve(rig.plan, chosen=attrs.evolve(chosen, engines=(*chosen.engines, sea)))
    with rig.finished(0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.run)
            waiting = "1 of 2 models are served; sea: waiting for a node"
            await rig.until(lambda: rig.screen.progressed[-1:] == [waiting])
            assert rig.screen.announcement is None
            rig.serves_second = True
            await rig.screen.served.wait()
            assert rig.ready()["models"] == ["moon", "sea"]
            rig.send.send_nowait(2)
    assert clock.current_time() < 10


async def test_a_second_interrupt_stops_at_once(rig: Rig, clock: MockClock) -> None:
    rig.in_flight = [1]

    async def stubborn(child: SimulatedChild) -> int:
        await trio.sleep_forever()
        raise AssertionError(child)

    rig.programs["node"] = stubborn
    with rig.finished(130):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.run)
            await rig.screen.served.wait()
            rig.send.send_nowait(2)
            await rig.until(lambda: any("1 request in flight" in text for text in rig.screen.progressed))
            await trio.sleep(1)
            began = clock.current_time()
            rig.send.send_nowait(2)
    assert clock.current_time() - began < 6
    controller, node = rig.children.started
    assert node.interrupts == 1, "the agent is hurried before it is killed: only it knows the engines"
    assert await node.wait() == -9
    assert await controller.wait() == 0


async def test_two_signals_at_once_are_one_interrupt(rig: Rig, clock: MockClock) -> None:
    rig.in_flight = [1, 1, 1, 0]
    with rig.finished(0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.run)
            await rig.screen.served.wait()
            rig.send.send_nowait(15)
            rig.send.send_nowait(15)
    assert rig.in_flight == [0]
    assert clock.current_time() < 10


async def test_an_interrupt_before_anything_serves(rig: Rig, clock: MockClock) -> None:
    rig.replica["state"] = "starting"
    with rig.finished(0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.run)
            await rig.until(lambda: any("engine starting" in text for text in rig.screen.progressed))
            assert clock.current_time() > 0
            rig.send.send_nowait(15)
    assert [await child.wait() for child in rig.children.started] == [0, 0]
    assert rig.screen.announcement is None


async def test_a_crashed_process_is_replaced_and_the_ready_file_follows(rig: Rig, clock: MockClock) -> None:
    with rig.finished(0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.run)
            await rig.screen.served.wait()
            rig.children.started[0].exit(-9)
            await rig.until(lambda: rig.ready()["pids"]["controller"] == 1002)
            rig.children.started[1].exit(1)
            rig.replica["pid"] = 88
            await rig.until(lambda: rig.ready()["pids"] == {"controller": 1002, "node": 1003, "engine": 88})
            rig.send.send_nowait(2)
    assert [(end.name, end.status, end.pause_ms) for end in rig.screen.ends] == [
        ("controller", -9, 250),
        ("node", 1, 250),
    ]
    assert clock.current_time() < 10


async def test_an_engine_that_fails_for_good_ends_everything(rig: Rig, clock: MockClock) -> None:
    rig.replica |= {
        "state": "failed",
        "pid": None,
        "restarts": 5,
        "exit": {"kind": "exited", "code": 3, "signal": None, "last_lines": ["loading", "no such tensor"]},
    }
    with rig.finished(1):
        await rig.run()
    assert rig.screen.failure is not None
    assert rig.screen.failure.message == "the engine exited with status 3, and is not tried again"
    assert rig.screen.failure.details == ("loading", "no such tensor")
    assert rig.screen.failure.hint
    assert [await child.wait() for child in rig.children.started] == [0, 0]
    assert clock.current_time() < 10


@pytest.mark.parametrize("news", [{"heartbeat_age_ms": None}, {"generation": 0}])
async def test_an_old_failure_is_no_failure_of_this_start(rig: Rig, clock: MockClock, news: dict[str, Any]) -> None:
    rig.replica |= {"state": "failed", "generation": news.get("generation", 1)}
    rig.heartbeat_age_ms = news.get("heartbeat_age_ms", 5)
    with rig.finished(0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.run)
            await rig.until(lambda: rig.screen.progressed[-1:] == ["moon: waiting for the node agent"])
            rig.replica |= {"state": "ready", "generation": 1}
            rig.heartbeat_age_ms = 5
            await rig.screen.served.wait()
            rig.send.send_nowait(2)
    assert clock.current_time() < 10


async def test_a_controller_that_knows_why_it_can_not_run(rig: Rig, clock: MockClock) -> None:
    async def held(_: SimulatedChild) -> int:
        return 75

    rig.programs["controller"] = held
    with rig.finished(75):
        await rig.run()
    assert rig.screen.failure is not None
    assert rig.screen.failure.message == "the controller ended with status 75"
    assert len(rig.children.started) == 1
    assert clock.current_time() < 10


async def test_a_controller_that_crashes_at_every_start(rig: Rig, clock: MockClock) -> None:
    async def crash(_: SimulatedChild) -> int:
        return 1

    rig.programs["controller"] = crash
    with rig.finished(1):
        await rig.run()
    assert len(rig.children.started) == 3
    assert [end.in_a_row for end in rig.screen.ends] == [1, 2]
    assert clock.current_time() < 10


async def test_a_program_that_does_not_exist(rig: Rig, clock: MockClock) -> None:
    del rig.programs["node"]
    with rig.finished(70):
        await rig.run()
    assert rig.screen.failure is not None
    assert "node can't be run" in rig.screen.failure.message
    assert clock.current_time() < 10


async def test_a_deployment_that_is_refused(rig: Rig, clock: MockClock) -> None:
    error = {"error": {"code": "invalid_request", "message": "alias is no identifier"}}
    rig.refuse_deployment = Reply(400, [json.dumps(error).encode()])
    with rig.finished(65):
        await rig.run()
    assert rig.screen.failure is not None
    assert "alias is no identifier" in rig.screen.failure.message
    assert clock.current_time() < 10


async def test_a_deployment_waits_for_a_store_that_is_not_there_yet(rig: Rig, clock: MockClock) -> None:
    rig.refuse_deployment = Reply(503, [b'{"error": {"code": "store_unavailable", "message": "soon"}}'])
    with rig.finished(0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.run)
            await rig.until(lambda: len(rig.alive("node")) == 1 and clock.current_time() > 5)
            rig.refuse_deployment = None
            await rig.screen.served.wait()
            rig.send.send_nowait(2)


async def test_a_ready_file_that_can_not_be_reached(rig: Rig, clock: MockClock) -> None:
    rig.folder.unavailable = True
    with rig.finished(73):
        await rig.run()
    assert rig.screen.failure is not None
    assert "/run/ready.json" in rig.screen.failure.message
    assert rig.screen.failure.hint == "check --ready-file"
    assert rig.children.started == []
    assert clock.current_time() < 10


async def test_a_ready_file_that_can_not_be_written_any_more(rig: Rig, clock: MockClock) -> None:
    """What it said would be wrong from now on, so that serving ends; in order, as ever."""
    rig.in_flight = [1, 0]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.run)
        await rig.screen.served.wait()
        rig.folder.unavailable = True
        rig.replica["pid"] = 88
    assert rig.code == 73
    assert rig.screen.failure is not None
    assert rig.screen.failure.hint == "check --ready-file"
    assert [await child.wait() for child in rig.children.started] == [0, 0]
    assert clock.current_time() < 10


async def test_a_ready_file_that_can_not_be_removed(rig: Rig, clock: MockClock) -> None:
    """The stop is in order; only its status tells."""
    rig.in_flight = [1, 0]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.run)
        await rig.screen.served.wait()
        rig.folder.unavailable = True
        rig.send.send_nowait(2)
    assert rig.code == 73
    assert rig.in_flight == [0], "what was in flight was waited for"
    assert [await child.wait() for child in rig.children.started] == [0, 0]
    assert clock.current_time() < 10
