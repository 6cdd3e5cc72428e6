"""How fast simulated time passes: virtual seconds a second, in worlds that do nothing and in worlds under load.

Whole worlds as scenarios have them, every invariant asked at every quiescent instant, one after another in this
process. What a world takes to be built and enrolled is measured apart: it is taken off the others. Beside them stands
what no world can be faster than: the timers and task switches of idle nodes with nothing in them.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from benchmarks.bare_reports import bare_virtual_seconds_a_second
from benchmarks.harness import HarnessFailed
from benchmarks.report import Options, Report
from lunanexa_simulation.run import Manner, Run, run_simulated
from lunanexa_simulation.scenarios import SCENARIOS
from lunanexa_simulation.scenarios.mixed_traffic import Traffic
from lunanexa_simulation.verdicts import Verdict
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

IDLE_S: Final = 600
BARE_S: Final = 7_200
MIXED_S: Final = 300
NODES: Final = 4
CALLERS: Final = 3
SEEDS: Final = range(1, 11)
LONG_SEEDS: Final = range(1, 6)
LONG_MS: Final = 300_000
DAY_S: Final = 86_400
_HORIZON_MS: Final = 3_600_000


@attrs.frozen(kw_only=True)
class Cost:
    """What a run took of this process, beside its virtual time."""

    cpu_s: float
    virtual_s: float
    instants: int


async def _stay(_: World, for_s: float) -> None:
    await trio.sleep(for_s)


async def _call(world: World, for_s: float) -> None:
    traffic = Traffic(world)
    with trio.move_on_after(for_s):
        async with trio.open_nursery() as nursery:
            for number in range(CALLERS):
                nursery.start_soon(traffic.call, number, world.client)
    traffic.look_back()


def _run(main: Callable[[Run], Awaitable[None]], rounds: int) -> Cost:
    costs = []
    for _ in range(rounds):
        began_s = time.process_time()
        result = run_simulated(main, 1, horizon_ms=_HORIZON_MS)
        if result.verdict is not Verdict.HELD:
            raise HarnessFailed(f"the world broke: {result.problem}")
        cpu_s = time.process_time() - began_s
        costs.append(Cost(cpu_s=cpu_s, virtual_s=result.virtual_ms / 1_000, instants=result.instants))
    return min(costs, key=lambda cost: cost.cpu_s)


def _world(
    replicas: int, what: Callable[[World, float], Awaitable[None]], for_s: float
) -> Callable[[Run], Awaitable[None]]:
    async def main(run: Run) -> None:
        async with open_world(run, WorldPlan(nodes=NODES)) as world:
            await world.start()
            if replicas:
                await world.deploy(replicas=replicas)
                await world.until("every replica serves", lambda: world.routable() == replicas, within_ms=60_000)
            await what(world, for_s)

    return main


def measure(options: Options) -> Report:
    """Four nodes idle, four nodes with a replica each idle, the same under callers, and seeds of the swarm."""
    worlds = {
        "four idle nodes": (0, _stay, IDLE_S),
        "four idle replicas": (NODES, _stay, IDLE_S),
        "four replicas, three callers": (NODES, _call, MIXED_S),
    }
    rows, figures = [], {}
    for name, (replicas, what, for_s) in worlds.items():
        built = _run(_world(replicas, what, 0), options.rounds)
        cost = _run(_world(replicas, what, for_s), options.rounds)
        spent_s = cost.cpu_s - built.cpu_s
        instants = cost.instants - built.instants
        rows.append((name, f"{for_s / spent_s:.0f}", f"{spent_s / instants * 1e6:.0f}", f"{instants / for_s:.1f}",
                     f"{spent_s:.1f}", f"{built.cpu_s:.2f}"))  # fmt: skip
        key = name.replace(",", "").replace(" ", "_")
        figures[f"{key}_virtual_seconds_a_second"] = for_s / spent_s
        figures[f"{key}_instant_us"] = spent_s / instants * 1e6
    for name, key, seeds, faults_ms in (
        ("seeds of the swarm", "swarm_seed", SEEDS, None),
        ("seeds of five minutes", "swarm_long_seed", LONG_SEEDS, LONG_MS),
    ):
        costs = [_seed(seed, faults_ms) for seed in seeds]
        cpu_s, virtual_s = sum(cost.cpu_s for cost in costs), sum(cost.virtual_s for cost in costs)
        instants = sum(cost.instants for cost in costs)
        rows.append((f"{len(costs)} {name}", f"{virtual_s / cpu_s:.0f}", f"{cpu_s / instants * 1e6:.0f}",
                     f"{instants / virtual_s:.1f}", f"{cpu_s:.1f}", "-"))  # fmt: skip
        figures[f"{key}_s"] = cpu_s / len(costs)
        figures[f"{key}_virtual_seconds_a_second"] = virtual_s / cpu_s
    bare = bare_virtual_seconds_a_second(NODES, BARE_S)
    rows.append(("four idle nodes' switches, nothing in them", f"{bare:.0f}", "-", "-", f"{BARE_S / bare:.1f}", "-"))
    figures["idle_day_s"] = day_s = DAY_S / figures["four_idle_nodes_virtual_seconds_a_second"]
    figures["bare_day_s"] = bare_s = DAY_S / bare
    figures["idle_to_bare"] = day_s / bare_s
    return Report(
        title="Simulated time",
        columns=("world", "virtual s/s", "us/instant", "instants/virtual s", "CPU s", "to build, CPU s"),
        rows=tuple(rows),
        figures=figures,
        notes=(
            f"24 virtual hours of four idle nodes take {day_s:.0f} s, by the first line; {bare_s:.0f} s by the last.",
            f"A seed of the swarm takes {figures['swarm_seed_s']:.1f} s of one core, one of five minutes "
            f"{figures['swarm_long_seed_s']:.1f} s.",
        ),
    )


def _seed(seed: int, faults_ms: int | None) -> Cost:
    began_s = time.process_time()
    result = SCENARIOS["many-faults"].run(seed, Manner(faults_ms=faults_ms))
    if result.verdict is not Verdict.HELD:
        raise HarnessFailed(f"seed {seed} of the swarm broke: {result.problem}")
    return Cost(cpu_s=time.process_time() - began_s, virtual_s=result.virtual_ms / 1_000, instants=result.instants)
