"""Random commands against the kernel's rules: nothing is lost, nothing is counted twice, replay is equal."""

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from lunanexa_core.commands import (
    AdmitWorkload,
    ApplyDeployment,
    BeginDrain,
    CancelWorkload,
    Command,
    FailAttempt,
    OpenSession,
    Rebase,
    Reconcile,
    RemoveDeployment,
    SettleWorkload,
    ShowDocument,
    Tick,
)
from lunanexa_core.events import Event, WorkloadAdmitted, WorkloadSettled
from lunanexa_core.ids import AssignmentId, BootId, KeyId, StartId, WorkloadId
from lunanexa_core.kernel.absorb import absorb
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import Answer, Done, decide
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.recovery import epoch_floor
from lunanexa_core.recovery_plan import recovery_plan
from lunanexa_core.routing.pick import deny_waiting, grant_waiting
from lunanexa_core.routing.routable import routable_replicas
from lunanexa_core.southbound.heartbeat import ReplicaReport, ReplicaState
from lunanexa_core.state import State
from lunanexa_core.state_digest import state_digest
from lunanexa_core.time import Instant
from lunanexa_core.workload import Attempt, Priority, Receipt, Settlement, Usage
from tests.core.builders import (
    DEPLOYMENT,
    NODE,
    NOW,
    POLICY,
    SESSION,
    api_key,
    begin,
    heartbeat,
    joining,
    report,
    reported,
    request,
    spec,
)
from tests.examples import examples

REQUESTS, TOKENS = 9, 8_500
BEGIN = begin(keys=(api_key(concurrency=6, requests_per_minute=REQUESTS, tokens_per_minute=TOKENS),))


class KernelMachine(RuleBasedStateMachine):
    """One leader, one node, a gateway; time moves by rules alone."""

    workloads: Bundle[WorkloadId] = Bundle("workloads")

    def __init__(self) -> None:
        super().__init__()
        self.now: Instant = NOW
        self.state = State()
        self.observed = Observed(began_mono_ms=NOW.mono_ms)
        self.history: list[tuple[Event, int, int]] = []
        self.epoch = 1
        self.sequence = 0
        self.number = 0
        self.boot = 1
        self.granted: dict[WorkloadId, list[StartId]] = {}
        self.due_ms: dict[WorkloadId, int] = {}
        self.ask(BEGIN)
        for command in joining():
            self.ask(command)
        self.ask(ApplyDeployment(spec=spec()))
        self.ask(Reconcile((AssignmentId("asg_first"),)))
        self.node_reports(ReplicaState.READY, same_boot=True, restarts=0)
        self.ask(OpenSession(SESSION))

    def ask(self, command: Command) -> Answer:
        decision = decide(self.state, self.observed, POLICY, command, self.now)
        for event in decision.events:
            apply(self.state, event, epoch=self.epoch, wall_ms=self.now.wall_ms)
            self.history.append((event, self.epoch, self.now.wall_ms))
        absorb(self.state, self.observed, POLICY, command, decision, self.now)
        for one in grant_waiting(self.state, self.observed, POLICY, self.now):
            self.granted.setdefault(one.workload, []).append(one.report.start)
            routable = routable_replicas(self.state, self.observed, POLICY, one.deployment, self.now)
            assert one.report in routable
        deny_waiting(self.state, self.observed, POLICY, self.now)
        return decision.answer

    @rule(ms=st.sampled_from([1, 200, 2_000, 11_000, 100_000]))
    def time_passes(self, ms: int) -> None:
        self.now = Instant(self.now.mono_ms + ms, self.now.wall_ms + ms)

    @rule(ms=st.sampled_from([5_000, 100_000]))
    def stands_still(self, ms: int) -> None:
        self.time_passes(ms)
        self.observed.stood_still(ms, self.now.mono_ms)

    @rule(numbers=st.sets(st.integers(0, 9), max_size=3))
    def reconcile(self, numbers: set[int]) -> None:
        fresh = tuple(AssignmentId(f"asg_{self.sequence}_{number}") for number in sorted(numbers))
        self.sequence += 1
        self.ask(Reconcile(fresh))

    @rule(state=st.sampled_from(ReplicaState), same_boot=st.booleans(), restarts=st.integers(0, 2))
    def node_reports(self, state: ReplicaState, same_boot: bool, restarts: int) -> None:
        if not same_boot:
            self.boot += 1
        self.sequence += 1
        reports: list[ReplicaReport] = [
            report(
                assignment=assignment.assignment,
                generation=assignment.generation,
                start=StartId(f"st_{assignment.assignment}_{restarts}"),
                state=state,
                restarts=restarts,
            )
            for assignment in self.state.assignments.values()
        ]
        self.ask(reported(heartbeat(self.sequence, *reports, boot=BootId(f"boot_{self.boot}"))))

    @rule()
    def session(self) -> None:
        self.ask(OpenSession(SESSION))

    @rule(target=workloads, priority=st.sampled_from(Priority))
    def admit(self, priority: Priority) -> WorkloadId:
        self.number += 1
        before = len(self.state.open)
        asked = request(self.number, priority=priority)
        answer = self.ask(AdmitWorkload(asked))
        assert len(self.state.open) == before + isinstance(answer, WorkloadAdmitted)
        self.due_ms[asked.workload] = self.now.mono_ms + asked.deadline_ms
        return asked.workload

    @rule(workload=workloads)
    def attempt_fails(self, workload: WorkloadId) -> None:
        held = self.observed.held.get(workload)
        start = StartId("st_other") if held is None else held.start
        self.ask(FailAttempt(workload, Attempt(start=start, failure="refused")))

    @rule(workload=consumes(workloads), outcome=st.sampled_from([None, Outcome.ENGINE_FAILED]))
    def settle(self, workload: WorkloadId, outcome: Outcome | None) -> None:
        was_open = workload in self.state.open
        settlement = Settlement(workload=workload, outcome=outcome, usage=Usage(input_tokens=3, output_tokens=4))
        first = self.ask(SettleWorkload(settlement))
        again = self.ask(SettleWorkload(attrs.evolve(settlement, detail="late")))
        if was_open:
            assert isinstance(first, Receipt)
            assert again == first

    @rule(workload=workloads, key=st.sampled_from([KeyId("key_1"), KeyId("key_2")]))
    def cancel(self, workload: WorkloadId, key: KeyId) -> None:
        """Its gateway is told, or, where none is left, it has ended; of another's nobody hears."""
        before = self.state.open.get(workload)
        alive = self.observed.sessions.get(SESSION, -1) > self.now.mono_ms
        answer = self.ask(CancelWorkload(workload, key))
        if before is None or (alive and before.key == key):
            assert answer == Done()
        elif before.key != key:
            assert isinstance(answer, Refusal)
        else:
            assert isinstance(answer, Receipt)
            assert answer.settlement.outcome is Outcome.CANCELLED_BY_CALLER
        ended = before is not None and before.key == key and not alive
        assert (workload in self.state.open) is (before is not None and not ended)

    @rule(renewed=st.booleans())
    def tick(self, renewed: bool) -> None:
        """Whatever its gateway does, no workload is open for long after its deadline; and nothing is kept of what
        the fleet has no more."""
        if renewed:
            self.ask(OpenSession(SESSION))
        self.ask(Tick())
        for workload in self.state.open.values():
            due_ms = self.due_ms[workload.request.workload]
            if workload.epoch < self.epoch:  # The time of its admission is known to its own leader alone.
                due_ms = self.observed.began_mono_ms + workload.request.deadline_ms
            due_ms = max(due_ms, self.observed.stood_still_until_mono_ms)
            assert self.now.mono_ms < due_ms + POLICY.overdue_ms
        assert self.observed.service_ms.keys() <= self.state.deployments.keys()
        assert self.observed.replicas.keys() <= self.state.assignments.keys() | self.state.replicas.keys()
        assert self.observed.read_mono_ms.keys() == self.observed.replicas.keys()
        for deployment, queue in self.observed.queues.items():
            assert queue or deployment in self.state.deployments

    @rule()
    def drain(self) -> None:
        self.ask(BeginDrain())
        refused = self.ask(AdmitWorkload(request(10**9)))
        assert isinstance(refused, Refusal)

    @rule(replicas=st.integers(0, 2))
    def scale(self, replicas: int) -> None:
        self.ask(ApplyDeployment(spec=spec(replicas=replicas)))

    @rule()
    def remove(self) -> None:
        self.ask(RemoveDeployment(DEPLOYMENT))

    @rule()
    def restart(self) -> None:
        """A new leader: state comes from replay, what was observed is gone."""
        self.epoch += 1
        replayed = self.replayed()
        assert state_digest(replayed) == state_digest(self.state)
        self.state = replayed
        self.observed = Observed(began_mono_ms=self.now.mono_ms)
        self.ask(BEGIN)

    @precondition(lambda self: not self.state.open)
    @rule(epochs=st.integers(0, 3), generations=st.integers(0, 3))
    def node_is_ahead_and_an_operator_says_go(self, epochs: int, generations: int) -> None:
        """Whatever it holds, its next document is above that; nothing is admitted before the go."""
        self.sequence += 1
        node, boot = self.state.nodes[NODE], BootId(f"boot_{self.boot}")
        epoch, generation = self.state.epoch + epochs, node.generation + generations
        ahead = attrs.evolve(heartbeat(self.sequence, boot=boot), epoch=epoch, generation=generation)
        shown = self.observed.shown.get(NODE, (0, 0))
        if epochs + generations > 0 and (epoch > shown[0] or generation > shown[1]):
            refused = self.ask(reported(ahead))
            assert isinstance(refused, Refusal)
            assert (refused.outcome, self.state.recovery) == (Outcome.DOCUMENT_WANTED, None)
            self.ask(ShowDocument(node=NODE, epoch=epoch, generation=generation))
        self.ask(reported(ahead))
        covered = epoch <= self.state.rebased
        assert (self.state.recovery is not None) is (epochs + generations > 0 and not covered)
        if self.state.recovery is not None:
            assert isinstance(self.ask(AdmitWorkload(request(10**9))), Refusal)
            self.epoch = epoch_floor(self.state, self.observed) + 1
            plan = recovery_plan(self.state, self.observed, POLICY, self.now)
            assert self.ask(Rebase(plan.digest)) == Done()
        if epochs + generations > 0:
            assert self.state.epoch >= epoch
            assert self.state.nodes[NODE].generation > generation

    def replayed(self) -> State:
        state = State()
        for event, epoch, wall_ms in self.history:
            apply(state, event, epoch=epoch, wall_ms=wall_ms)
        return state

    @invariant()
    def replay_is_equal(self) -> None:
        assert self.replayed() == self.state

    @invariant()
    def one_receipt_each(self) -> None:
        admitted = [event.request.workload for event, *_ in self.history if isinstance(event, WorkloadAdmitted)]
        settled = [event.receipt.workload for event, *_ in self.history if isinstance(event, WorkloadSettled)]
        assert len(set(settled)) == len(settled)
        assert set(settled) | set(self.state.open) == set(admitted)
        assert not set(settled) & set(self.state.open)

    @invariant()
    def counters_are_what_is_open(self) -> None:
        assert sum(self.state.open_of_key.values()) == len(self.state.open)
        assert sum(self.state.open_of_deployment.values()) == len(self.state.open)
        assert all(count > 0 for count in self.state.open_of_key.values())

    @invariant()
    def windows_stay_within_the_limits(self) -> None:
        for windows in self.state.windows.values():
            assert 0 <= windows.requests.spent(self.now.wall_ms) <= REQUESTS
            assert 0 <= windows.tokens.spent(self.now.wall_ms) <= TOKENS

    @invariant()
    def holds_belong_to_open_workloads(self) -> None:
        assert set(self.observed.held) <= set(self.state.open)
        assert sum(self.observed.slots_held.values()) == len(self.observed.held)
        waiting = {workload for queue in self.observed.queues.values() for workload in queue.waiters}
        assert not waiting & set(self.observed.held)
        assert waiting <= set(self.state.open)

    @invariant()
    def slots_are_never_exceeded(self) -> None:
        for replica in self.state.replicas.values():
            assert self.observed.slots_held.get(replica.start, 0) <= max(replica.slots, 0)

    @invariant()
    def nobody_gets_a_failed_replica_again(self) -> None:
        for starts in self.granted.values():
            assert len(set(starts)) == len(starts)


KernelMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestKernelMachine = KernelMachine.TestCase
