"""The scenarios by name. Each is a page of Python: what happens, and what must hold."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import attrs

from lunanexa_simulation.run import Manner, Run, RunResult, run_simulated
from lunanexa_simulation.scenarios import (
    agent_kill,
    air_gapped,
    cancellation,
    clocks,
    data_door,
    disk,
    drain,
    engine_faults,
    enrolment,
    exclusive,
    failover,
    first_slice,
    forgery,
    idempotency,
    key_limits,
    leadership,
    ledger_pruning,
    many_faults,
    memory,
    node_loss,
    overload,
    owners_policy,
    partition,
    reboot,
    restore,
    revocation,
    schema_upgrade,
    strict_routing,
    trust_rotation,
    websocket,
    workloads,
)


@attrs.frozen(kw_only=True)
class Scenario:
    """One scenario; ``horizon_ms`` is the virtual time within which it must be over, beside mishaps that were asked to
    last longer than they are drawn; ``draws``: whether it has any."""

    name: str
    summary: str
    main: Callable[[Run], Awaitable[None]]
    horizon_ms: int = 600_000
    draws: bool = False

    def run(self, seed: int, manner: Manner | None = None) -> RunResult:
        """Runs it from ``seed``."""
        longer_ms = 0 if manner is None or manner.faults_ms is None else manner.faults_ms
        return run_simulated(self.main, seed, horizon_ms=self.horizon_ms + longer_ms, manner=manner)


SCENARIOS: Final[Mapping[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="first-slice",
            summary="enrol, deploy, serve; engine crash and controller kill under streams; recovery; drain; stop",
            main=first_slice.main,
        ),
        Scenario(
            name="agent-kill",
            summary="the agent dies under streams, for a moment and beyond its lease; the engine goes on",
            main=agent_kill.main,
        ),
        Scenario(
            name="failover",
            summary="two nodes; one engine dies under load; the other replica takes what had no output yet",
            main=failover.main,
        ),
        Scenario(
            name="key-limits",
            summary="a key with limits: callers at once, an abort, a minute used up, a revocation under a stream",
            main=key_limits.main,
        ),
        Scenario(
            name="idempotency",
            summary="callers who repeat themselves while the controller dies; nothing runs twice for one key",
            main=idempotency.main,
        ),
        Scenario(
            name="workloads",
            summary="own workloads, seen and cancelled: waiting, running, streaming, after a kill, by another key",
            main=workloads.main,
        ),
        Scenario(
            name="cancellation",
            summary="clients leave in the queue, before the first byte, in mid-stream, at any moment; all is freed",
            main=cancellation.main,
        ),
        Scenario(
            name="engine-faults",
            summary="an engine that cuts, fails, refuses, closes, hangs and exits; each told honestly, its slot freed",
            main=engine_faults.main,
        ),
        Scenario(
            name="overload",
            summary="more callers than slots and queue; deadlines that pass in the queue; a drain under load",
            main=overload.main,
        ),
        Scenario(
            name="partition",
            summary="controller and agents can't hear each other; what a lease ends, and engines found as they were",
            main=partition.main,
        ),
        Scenario(
            name="disk",
            summary="disks that are full, gone, slow or silent under traffic; 503 meanwhile, one receipt each after it",
            main=disk.main,
        ),
        Scenario(
            name="clocks",
            summary="clocks that are off, jump and run fast or slow; nobody is blamed, no minute of a key is shorter",
            main=clocks.main,
        ),
        Scenario(
            name="reboot",
            summary="a node reboots with engines running and starting; strangers get their numbers and no signal",
            main=reboot.main,
        ),
        Scenario(
            name="leadership",
            summary="three controllers, nodes told of one; the leader dies, is cut off, stops; they find the next",
            main=leadership.main,
        ),
        Scenario(
            name="ledger-pruning",
            summary="a ledger that is too long; a death between decision and deletion; pruned under traffic",
            main=ledger_pruning.main,
        ),
        Scenario(
            name="restore",
            summary="the store is set back under four nodes; noticed, a plan, a go; nothing runs twice",
            main=restore.main,
        ),
        Scenario(
            name="schema-upgrade",
            summary="a released store is taken up; controllers, agents are upgraded under streams; no engine restarts",
            main=schema_upgrade.main,
        ),
        Scenario(
            name="drain",
            summary="four nodes drained, cordoned, retired under streams; none is cut, the successor serves first",
            main=drain.main,
        ),
        Scenario(
            name="node-loss",
            summary="a node is cut off, dies, returns; its replica comes up elsewhere; most are late: nothing moves",
            main=node_loss.main,
        ),
        Scenario(
            name="exclusive",
            summary="a deployment of one place; its node is cut off, killed, drained; never two engines at once",
            main=exclusive.main,
        ),
        Scenario(
            name="owners-policy",
            summary="owners forbid what may run, and lift it: moved, ended, waiting, refused by all; their word holds",
            main=owners_policy.main,
        ),
        Scenario(
            name="data-door",
            summary="who is let in at a node's data listener; old starts, a node that lies, a lease that lapses",
            main=data_door.main,
        ),
        Scenario(
            name="enrolment",
            summary="agents that die as they enrol; certificates renewed at half of their time, and after a week-end",
            main=enrolment.main,
        ),
        Scenario(
            name="revocation",
            summary="a node is revoked under streams; nothing of it counts, and a token lets it in again",
            main=revocation.main,
        ),
        Scenario(
            name="forgery",
            summary="heartbeats and documents forged, repeated, rolled back, under streams; nothing of it counts",
            main=forgery.main,
        ),
        Scenario(
            name="strict-routing",
            summary="wrong programs on an engine's port, groups without a leader, declared ones; nobody asks them",
            main=strict_routing.main,
        ),
        Scenario(
            name="trust-rotation",
            summary="authority and signing key are exchanged under calls; a node is away; the old keys go",
            main=trust_rotation.main,
        ),
        Scenario(
            name="air-gapped",
            summary="bundles and reports carried by hand; an agent killed at any moment, forged media, a lost store",
            main=air_gapped.main,
        ),
        Scenario(
            name="many-faults",
            summary="worlds, callers and mishaps of every kind, as the seed has them: what a swarm runs",
            main=many_faults.main,
            horizon_ms=900_000,
            draws=True,
        ),
        Scenario(
            name="memory",
            summary="memory that comes back late, an engine that leaks, a start without room; no two engines at once",
            main=memory.main,
        ),
        Scenario(
            name="websocket",
            summary="many workloads on one connection: cancelled, dropped, resumed, too slow, and a controller's death",
            main=websocket.main,
        ),
    )
}
