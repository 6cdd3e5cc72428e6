"""The node agent on a simulated machine: it makes documents true, and says what is."""

import attrs
import pytest
import trio
from trio.testing import MockClock

from lunanexa_apps.codec import encode
from lunanexa_apps.node.settings import HEARTBEAT_MS
from lunanexa_core.ids import ClusterId, NodeId, StartId
from lunanexa_core.lifecycle.reconcile import AssignmentRefusal
from lunanexa_core.southbound.documents import Directive, DocumentRefusal
from lunanexa_core.southbound.heartbeat import IdentityGrade, RefusedAssignment, ReplicaState
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.processes import ManagedProcess
from lunanexa_simulation.machine import SimulatedHost
from lunanexa_simulation.processes import SimulatedProcesses
from tests.apps.node_world import BINARY, ENGINE_KEY, NodeWorld, assignment, node_world


@pytest.fixture
def clock() -> MockClock:
    """Time passes only when every task waits."""
    return MockClock(autojump_threshold=0)


STRAY = StartId("start_99_nobodys")


async def ready_world(world: NodeWorld) -> None:
    await world.start()
    world.controller.desire(assignment())
    await world.controller.until_state(ReplicaState.READY)


async def test_an_assigned_engine_is_started_proven_and_reported(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        report = world.controller.report()
        assert report is not None
        (process,) = world.host.living()
        assert (report.identity, report.start, report.pid) == (
            IdentityGrade.PROVEN,
            process.start,
            process.identity.pid,
        )
        assert (report.host, report.port, report.served_name, report.slots) == (
            "127.0.0.1",
            int(process.option("--port")),
            "tiny",
            4,
        )
        assert process.environment["LUNANEXA_ENGINE_API_KEY"] == ENGINE_KEY
        heartbeat = world.controller.heartbeats[-1]
        assert (heartbeat.epoch, heartbeat.generation) == (1, 1)
        assert (heartbeat.available_mib, heartbeat.total_mib) == (800, 1_000)


async def test_heartbeats_go_on_at_their_interval_and_a_change_is_told_at_once(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        heard = len(world.controller.heartbeats)
        before_s = trio.current_time()
        await world.controller.until(lambda: len(world.controller.heartbeats) == heard + 3)
        assert trio.current_time() - before_s == pytest.approx(6.0, abs=0.1)
        before_s = trio.current_time()
        world.host.living()[0].crash(code=0)
        await world.controller.until_state(ReplicaState.BACKOFF)
        assert trio.current_time() - before_s < 0.1


async def test_a_crash_is_restarted_with_a_new_start_id_and_its_last_lines(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        first = world.host.living()[0]
        first.crash(signal=11)
        report = await world.controller.until_state(ReplicaState.BACKOFF)
        assert report.exit is not None
        assert (report.exit.kind, report.exit.signal) == ("signalled", 11)
        assert report.exit.last_lines == (f"engine {first.start} starts",)
        report = await world.controller.until_state(ReplicaState.READY)
        assert report.start != first.start
        assert report.restarts == 1


async def test_an_engine_that_always_exits_is_given_up_within_its_budget(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await world.start()
        world.engine.exit_code = 0
        world.controller.desire(assignment(restart_budget=3))
        report = await world.controller.until_state(ReplicaState.FAILED)
        assert len(world.engine.started) == 4
        assert report.exit is not None
        assert (report.exit.kind, report.exit.code, report.restarts) == ("exited", 0, 4)
        # Only a newer generation is another try.
        world.engine.exit_code = None
        world.controller.desire(assignment(generation=2))
        await world.controller.until_state(ReplicaState.READY, generation=2)


async def test_an_engine_that_hangs_is_killed_and_replaced(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        first = world.host.living()[0]
        first.hang()
        await world.controller.until_state(ReplicaState.STARTING)
        report = await world.controller.until_state(ReplicaState.BACKOFF)
        assert report.exit is not None
        assert (report.exit.kind, report.exit.signal) == ("unhealthy", 9)
        await world.controller.until_state(ReplicaState.READY)


async def test_a_stranger_on_the_port_is_never_reported_ready(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.engine.names = ("tiny", "start_of_somebody_else")
        await world.start()
        world.controller.desire(assignment(restart_budget=1))
        report = await world.controller.until_state(ReplicaState.FAILED)
        assert report.exit is not None
        assert report.exit.kind == "wrong_identity"
        seen = {one.state for beat in world.controller.heartbeats for one in beat.replicas}
        assert ReplicaState.READY not in seen


async def test_a_newer_generation_drains_and_stops_the_old_one_first(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        world.engine.running = 1
        world.controller.desire(assignment(generation=2, slots=2))
        await world.controller.until_state(ReplicaState.DRAINING, generation=1)
        assert len(world.engine.started) == 1
        world.engine.running = 0
        report = await world.controller.until_state(ReplicaState.READY, generation=2)
        assert (report.slots, len(world.engine.started)) == (2, 2)
        assert len(world.host.living()) == 1


async def test_what_is_not_desired_any_more_is_stopped_and_its_absence_told_once(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        world.controller.desire()
        await world.controller.until_state(ReplicaState.ABSENT)
        assert world.host.living() == []
        assert not world.host.intents
        await world.controller.until(lambda: world.controller.report() is None)


async def test_one_assignment_that_cannot_be_started_stops_no_other(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await world.start()
        world.controller.desire(assignment("bad", driver="no-such"), assignment("worse", binary=None), assignment())
        await world.controller.until_state(ReplicaState.READY)
        for name, problem in (("bad", "no such driver"), ("worse", "engine.binary is missing")):
            report = await world.controller.until_state(ReplicaState.FAILED, name)
            assert report.exit is not None
            assert (report.exit.kind, report.exit.last_lines) == ("refused", (problem,))


async def test_an_assignment_that_goes_back_is_refused_and_told(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await world.start()
        world.controller.desire(assignment(generation=2))
        await world.controller.until_state(ReplicaState.READY)
        world.controller.desire(assignment(generation=1))
        refused = (RefusedAssignment(assignment=assignment().assignment, refusal=AssignmentRefusal.ROLLED_BACK.value),)
        await world.controller.until(lambda: world.controller.heartbeats[-1].refused == refused)
        assert len(world.host.living()) == 1


async def test_documents_that_may_not_be_followed_are_refused_told_and_change_nothing(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        controller, good = world.controller, world.controller.document
        newer = attrs.evolve(good, generation=9, assignments=())
        cases = {
            DocumentRefusal.UNKNOWN_KEY: world.stranger.sign(encode(newer)),
            DocumentRefusal.BAD_SIGNATURE: attrs.evolve(controller.signer.sign(encode(newer)), signature=b"no"),
            DocumentRefusal.NOT_READABLE: controller.signer.sign(b'{"epoch": 1.5}'),
            DocumentRefusal.OTHER_CLUSTER: controller.signer.sign(encode(attrs.evolve(newer, cluster=ClusterId("x")))),
            DocumentRefusal.OTHER_NODE: controller.signer.sign(encode(attrs.evolve(newer, node=NodeId("x")))),
            DocumentRefusal.ROLLED_BACK: controller.signer.sign(encode(attrs.evolve(newer, epoch=0))),
            DocumentRefusal.CONTENT_CHANGED: controller.signer.sign(encode(attrs.evolve(good, assignments=()))),
        }
        for refusal, document in cases.items():
            controller.offer(document)
            await controller.until(lambda: controller.heartbeats[-1].document_refusal == refusal.value)  # noqa: B023  # awaited here
        assert controller.heartbeats[-1].generation == good.generation
        assert len(world.host.living()) == 1
        controller.desire()
        await controller.until(lambda: controller.heartbeats[-1].document_refusal is None)
        await controller.until_state(ReplicaState.ABSENT)


async def test_the_answer_to_another_heartbeat_grants_no_lease(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        lease = world.newest.agent.lease
        world.controller.answers_late = 1_000
        before = len(world.controller.heartbeats)
        await trio.sleep(world.controller.lease_ms / 1_000 + 1)
        assert len(world.controller.heartbeats) > before
        assert not lease.live(world.clock.now())
        world.controller.answers_late = 0
        await lease.wait_granted()
        assert len(world.engine.started) == 1


async def test_no_document_of_before_the_enrolment_is_followed(clock: MockClock) -> None:
    async with node_world(clock) as world:
        controller = world.controller
        older = controller.signer.sign(encode(attrs.evolve(controller.document, epoch=4, generation=9)))
        controller.document = attrs.evolve(controller.document, epoch=5)
        await world.start()
        controller.offer(older)
        await controller.until(
            lambda: controller.heartbeats and controller.heartbeats[-1].document_refusal == "rolled_back"
        )
        assert controller.heartbeats[-1].generation == 0
        controller.desire(assignment())
        await controller.until_state(ReplicaState.READY)


async def test_a_new_leader_may_sign_the_same_document_again(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        controller = world.controller
        controller.document = attrs.evolve(controller.document, epoch=2)
        controller.offer(controller.signer.sign(encode(controller.document)))
        await controller.until(lambda: controller.heartbeats[-1].epoch == 2)
        assert len(world.engine.started) == 1


@pytest.mark.slow
async def test_a_controller_that_does_not_know_the_followed_document_is_shown_it(clock: MockClock) -> None:
    """As it was signed, also by an agent that found it on its disk, and before anything else is waited for."""
    async with node_world(clock) as world:
        await ready_world(world)
        controller = world.controller
        for restarted in (False, True):
            if restarted:
                world.newest.kill()
                await world.newest.ended.wait()
                await world.start()
            controller.wants, controller.shown, heard, began = True, [], len(controller.heartbeats), trio.current_time()
            while len(controller.heartbeats) == heard:
                await controller.until(lambda: not controller.wants)
                await trio.testing.wait_all_tasks_blocked()
            assert controller.shown == [controller.offered]
            assert trio.current_time() - began <= HEARTBEAT_MS / 1_000 + 1
        assert len(world.host.living()) == 1


async def test_an_agent_that_has_nothing_to_show_goes_on_asking(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.controller.wants = True
        await world.start()
        await world.controller.until(lambda: world.controller.asked.count("heartbeat") > 3)
        assert world.controller.shown == []
        world.controller.wants = False
        await world.controller.until(lambda: world.controller.heartbeats)


@pytest.mark.thorough
async def test_a_node_is_heard_within_one_interval_after_however_long_an_outage(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        world.network.refuse("controller", 8400)
        world.network.cut("controller", 8400)
        await trio.sleep(600)
        heard, back_s = len(world.controller.heartbeats), trio.current_time()
        world.network.refuse("controller", 8400, on=False)
        await world.controller.until(lambda: len(world.controller.heartbeats) > heard)
        assert trio.current_time() - back_s <= HEARTBEAT_MS / 1_000


async def test_without_a_controller_nothing_is_started_and_with_it_what_is_desired(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        world.newest.kill()
        world.network.refuse("controller", 8400)
        world.host.reboot()
        agent = (await world.start()).agent
        while not any(report.state is ReplicaState.AWAITING_LEASE for report in agent.reports()):
            await trio.sleep(0.1)
        await trio.sleep(60)
        assert world.host.living() == []
        world.network.refuse("controller", 8400, on=False)
        await world.controller.until_state(ReplicaState.READY)


async def test_directives_empty_the_node_and_fill_it_again(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        world.controller.desire(assignment(), directive=Directive.DRAIN)
        await world.controller.until_state(ReplicaState.ABSENT)
        world.controller.desire(assignment())
        await world.controller.until_state(ReplicaState.READY)


async def test_shutdown_drains_stops_tells_and_returns(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        world.engine.running = 1
        world.newest.shutdown.ask()
        await world.controller.until_state(ReplicaState.DRAINING)
        world.engine.running = 0
        await world.newest.ended.wait()
        assert world.host.living() == []
        assert ReplicaState.ABSENT in {one.state for beat in world.controller.heartbeats for one in beat.replicas}
        # The next agent starts again what is desired.
        await world.start()
        await world.controller.until_state(ReplicaState.READY)


async def test_a_shutdown_does_not_wait_longer_than_its_drain_and_stop_times(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        world.engine.running = 1
        world.host.faults.ignore_terminate = True
        world.host.living()[0].terminated = trio.Event()  # SIGTERM does not reach the program either
        before_s = trio.current_time()
        world.newest.shutdown.ask()
        await world.newest.ended.wait()
        assert trio.current_time() - before_s <= 25


async def test_a_second_request_kills_at_once(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        world.engine.running = 1
        world.newest.shutdown.ask()
        await world.controller.until_state(ReplicaState.DRAINING)
        before_s = trio.current_time()
        world.newest.shutdown.ask()
        await world.newest.ended.wait()
        assert trio.current_time() - before_s < 1


async def test_a_cancelled_agent_leaves_its_engines_to_the_next_one(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        (process,) = world.host.living()
        world.newest.kill()
        await world.newest.ended.wait()
        assert world.host.living() == [process]
        boots = {beat.boot for beat in world.controller.heartbeats}
        await world.start()
        await world.controller.until(lambda: {beat.boot for beat in world.controller.heartbeats} != boots)
        report = await world.controller.until_state(ReplicaState.READY)
        assert (report.start, report.pid) == (process.start, process.identity.pid)
        assert len(world.engine.started) == 1


async def test_an_engine_that_died_while_no_agent_looked_is_closed_and_started_anew(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        (process,) = world.host.living()
        world.newest.kill()
        process.crash(code=1)
        await process.ended.wait()
        world.host.reuse_pid(process.start)
        await world.start()
        report = await world.controller.until_state(ReplicaState.BACKOFF)
        assert report.exit is not None
        assert (report.exit.kind, report.exit.last_lines) == ("unobserved", (f"engine {process.start} starts",))
        await world.controller.until_state(ReplicaState.READY)
        strangers = [one for one in world.host.living() if one.argv == ("stranger",)]
        assert len(strangers) == 1, "a stranger with a reused pid was killed"


async def test_an_adopted_engine_is_bound_by_its_listener_and_left_running(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.engine.names = ("tiny",)
        foreign = world.host.next_identity()
        world.host.listeners[11434] = foreign
        world.network.listen("127.0.0.1", 11434, world.engine.serve(None))
        await world.start()
        adopted = assignment(driver="generic_openai", binary=None, url="http://127.0.0.1:11434")
        world.controller.desire(adopted)
        report = await world.controller.until_state(ReplicaState.READY)
        assert (report.identity, report.port, report.pid) == (IdentityGrade.BOUND, 11434, None)
        assert world.engine.started == []
        # Another program takes the port: it is not what was adopted.
        world.host.listeners[11434] = world.host.next_identity()
        report = await world.controller.until_state(ReplicaState.BACKOFF)
        assert report.exit is not None
        assert report.exit.kind == "wrong_identity"
        await world.controller.until_state(ReplicaState.READY)
        world.controller.desire()
        await world.controller.until_state(ReplicaState.ABSENT)


async def test_an_engine_elsewhere_is_only_declared(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.engine.names = ("tiny",)
        world.network.listen("gpu.example", 80, world.engine.serve(None))
        await world.start()
        world.controller.desire(assignment(driver="generic_openai", binary=None, url="http://gpu.example"))
        report = await world.controller.until_state(ReplicaState.READY)
        assert report.identity is IdentityGrade.DECLARED
        # Readings of an engine that has none are unknown.
        assert (report.readings.running, report.readings.waiting) == (None, None)


async def test_readings_are_reported_with_their_age(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        world.engine.running = 3
        await world.controller.until(
            lambda: (report := world.controller.report()) is not None and report.readings.running == 3
        )
        world.engine.health = 503
        await world.controller.until(
            lambda: (report := world.controller.report()) is not None and report.readings.age_ms > 2_000
        )
        report = world.controller.report()
        assert report is not None
        assert report.readings.running == 3


async def test_a_store_outage_delays_a_start_and_costs_no_restart(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await world.start()
        await world.controller.until(lambda: world.controller.heartbeats)
        world.controller.desire(assignment())
        await world.controller.until(lambda: world.controller.heartbeats[-1].generation == 1)
        await world.controller.until_state(ReplicaState.READY)
        world.disk.faults.full = True
        world.host.living()[0].crash(code=1)
        await trio.sleep(60)
        assert len(world.engine.started) == 1
        world.disk.faults.full = False
        report = await world.controller.until_state(ReplicaState.READY)
        assert (report.restarts, len(world.engine.started)) == (1, 2)


async def test_memory_that_cannot_be_read_is_unknown(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.memory.readable = False
        await world.start()
        await world.controller.until(lambda: world.controller.heartbeats)
        heartbeat = world.controller.heartbeats[-1]
        assert (heartbeat.available_mib, heartbeat.total_mib) == (None, None)


async def test_nothing_secret_is_in_a_heartbeat(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        assert ENGINE_KEY.encode() not in b"".join(encode(beat) for beat in world.controller.heartbeats)
        assert BINARY.encode() not in encode(world.controller.heartbeats[-1])


class StubbornRecords(SimulatedProcesses):
    """A directory of records that can't be had for a while."""

    def __init__(self, host: SimulatedHost) -> None:
        super().__init__(host)
        self.failures = 3

    def adopt(self, start: StartId) -> ManagedProcess | None:
        if start == STRAY and self.failures:
            self.failures -= 1
            raise PortUnavailable("the records can't be read")
        return super().adopt(start)


async def test_a_stray_whose_record_cannot_be_had_is_tried_again_and_ends_no_agent(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.host.intents[STRAY] = None
        await world.start(wrap_processes=lambda _: StubbornRecords(world.host))
        world.controller.desire(assignment())
        await world.controller.until_state(ReplicaState.READY)
        await trio.sleep(120)
        assert STRAY not in world.host.intents
        assert len(world.host.living()) == 1


async def test_a_retired_node_is_refused_and_still_does_what_it_is_told(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready_world(world)
        engine, world.controller.retired = world.host.living()[0], True
        await trio.sleep(60)
        assert engine in world.host.living()
        world.controller.desire(directive=Directive.RETIRE)
        await trio.sleep(60)
        assert not world.host.living()
        assert len(world.controller.enrolments) == 1
