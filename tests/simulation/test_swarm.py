"""The swarm: what a seed draws, what leaving mishaps out changes, and that many seeds hold."""

import hashlib
import json
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import TypeVar

import attrs
import jsonschema_rs
import pytest
import trio

from lunanexa_simulation.cli.live import EVERY_S, swarm_board
from lunanexa_simulation.cli.program import start
from lunanexa_simulation.cli.told import failure_lines, minutes_words
from lunanexa_simulation.cli.tools import Tools, faults_ms_of
from lunanexa_simulation.cli.workers import SEED_S_MAX, _ask
from lunanexa_simulation.documents import SCHEMA, simulation_schema
from lunanexa_simulation.main import main
from lunanexa_simulation.mishaps import KINDS
from lunanexa_simulation.mishaps.plan import MixedPlan, draw_plan
from lunanexa_simulation.results import run_document
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.run import Manner
from lunanexa_simulation.scenarios import SCENARIOS
from lunanexa_simulation.verdicts import Verdict

T = TypeVar("T")
MIXED = SCENARIOS["many-faults"]
SEEDS = 200
EACH = 10


def test_seeds_draw_every_world_and_every_kind_of_mishap() -> None:
    plans = [draw_plan(Streams(seed).stream("plan")) for seed in range(300)]
    usual = {name for name, kind in KINDS.items() if not kind.lengthy}
    assert {mishap.kind for plan in plans for mishap in plan.mishaps} == usual
    plans += [draw_plan(Streams(seed).stream("plan"), lasting_ms=60_000) for seed in range(30)]
    assert {plan.world.nodes for plan in plans} == {1, 2, 3, 4}
    assert {plan.world.controllers for plan in plans} == {1, 2, 3}
    assert {mishap.kind for plan in plans for mishap in plan.mishaps} == KINDS.keys()
    for plan in plans:
        assert [mishap.number for mishap in plan.mishaps] == list(range(1, len(plan.mishaps) + 1))
        times = [mishap.at_ms for mishap in plan.mishaps]
        assert times == sorted(times)
        assert all(at_ms < plan.faults_ms for at_ms in times)
        assert 1 <= plan.replicas <= plan.world.nodes
        assert {mishap.kind for mishap in plan.mishaps} != KINDS.keys(), "each seed leaves some kinds out"


def test_one_seed_has_one_plan() -> None:
    assert draw_plan(Streams(7).stream("plan")) == draw_plan(Streams(7).stream("plan"))


@pytest.mark.parametrize(
    ("drawing", "digest", "of_long_ones"),
    [
        (1, "556be699dce8f1a7", "40a068d7dfd96b7d"),
        (2, "874d044951299670", "f736fa5c0e57a6ed"),
        (3, "238fa37f9468c79e", "c8919249efc19689"),
    ],
)
def test_a_drawing_makes_the_same_of_a_seed_for_ever(drawing: int, digest: str, of_long_ones: str) -> None:
    """Else a kept seed shows nothing any more. What is to be drawn anew is a new drawing."""
    plans = [draw_plan(Streams(seed).stream("plan"), drawing) for seed in range(40)]
    long = [draw_plan(Streams(seed).stream("plan"), drawing, 120_000) for seed in range(10)]
    assert (_digest(plans), _digest(long)) == (digest, of_long_ones)
    known = {mishap.kind for plan in (*plans, *long) for mishap in plan.mishaps}
    assert known == {kind.name for kind in KINDS.values() if kind.since <= drawing}


def _digest(plans: Sequence[MixedPlan]) -> str:
    return hashlib.sha256(b"".join(map(_drawn, plans))).hexdigest()[:16]


def _drawn(plan: MixedPlan) -> bytes:
    world = plan.world
    counts = [plan.replicas, plan.callers, plan.faults_ms, world.nodes, world.controllers, world.latency_ms]
    parts = [world.sync_ms, world.engine_arguments, world.engine_slots, world.linger_ms, world.doors]
    engine = [sorted(world.engine_memory.items()), sorted(world.specification.items())]
    return repr([[mishap.told for mishap in plan.mishaps], *counts, *parts, *engine]).encode()


def test_where_nobody_looks_on_a_line_comes_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = iter([0.0, 1.0, EVERY_S, EVERY_S, EVERY_S + 1])
    with swarm_board(9, lambda: next(now)) as board:
        for done in (1, 2, 3):
            board.done(done, 0, Counter({"mishap engine dies": 4, "answer whole": 5}))
    out, err = capsys.readouterr()
    assert (out, err) == ("", "2 of 9 seeds, 0 broken, 4 mishaps, 5 answers\n")


async def test_a_worker_that_ends_tells_nothing() -> None:
    async with trio.open_nursery() as nursery:
        start = partial(trio.run_process, ["true"], stdin=PIPE, stdout=PIPE, check=False)
        process = await nursery.start(start)
        with trio.fail_after(20):
            await process.wait()
            assert await _ask(process, 1, SEED_S_MAX) is None


def test_a_plan_may_last_longer_than_its_seed_has_it() -> None:
    for seed in range(40):
        own, long = (draw_plan(Streams(seed).stream("plan"), lasting_ms=lasting_ms) for lasting_ms in (None, 300_000))
        assert long.faults_ms == 300_000
        same = [one for one in long.mishaps if one.at_ms < own.faults_ms]
        assert same == list(own.mishaps), "it begins as it would"
        assert not long.mishaps or long.mishaps[-1].at_ms > 200_000
        assert attrs.evolve(long.world, snapshot_rows=own.world.snapshot_rows) == own.world


@pytest.mark.slow
def test_a_swarm_of_longer_seeds_tells_how_to_see_one_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "swarm.json"
    swarm = ["swarm", "--seeds", "1", "--first", "3", "--minutes", "1.5", "--json", str(path)]
    assert main(swarm) == 0
    document = json.loads(path.read_text())
    jsonschema_rs.validator_for(simulation_schema()).validate(document)
    assert document["faults_ms"] == 90_000
    assert "many-faults --minutes 1.5, 1 of 1 seeds from 3: 1 held" in capsys.readouterr().out
    result = MIXED.run(3, Manner(faults_ms=90_000))
    assert document["virtual_ms"] == result.virtual_ms > 90_000
    failed = attrs.evolve(result, verdict=Verdict.SAFETY_BROKEN, problem="a thing: 1")
    lines = failure_lines(run_document("many-faults", failed, None))
    assert "again: lunanexa-sim run many-faults --seed 3 --minutes 1.5" in lines
    assert "with fewer mishaps: lunanexa-sim shrink --seed 3 --minutes 1.5" in lines


@pytest.mark.parametrize("faults_ms", [6_000, 20_000, 90_000, 3_599_999, 3_600_000])
def test_minutes_that_are_told_are_those_that_were_run(faults_ms: int) -> None:
    option, minutes = minutes_words(faults_ms).split()
    assert option == "--minutes"
    assert faults_ms_of("many-faults", float(minutes)) == faults_ms


@pytest.mark.parametrize(
    "command", [["run", "drain"], ["swarm", "--scenario", "drain"], ["shrink", "--scenario", "drain"]]
)
def test_minutes_are_for_what_draws_mishaps(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--minutes", "5"]) == 64
    assert "--minutes: drain draws no mishaps" in capsys.readouterr().err


@pytest.mark.slow
def test_without_its_mishaps_a_seed_has_the_same_in_store() -> None:
    whole, without = MIXED.run(6), MIXED.run(6, Manner(only=frozenset()))
    assert whole.verdict is without.verdict is Verdict.HELD
    assert whole.drawn == without.drawn
    assert any(name.startswith("mishap ") for name in whole.happened)
    assert not any(name.startswith("mishap ") for name in without.happened)


@pytest.mark.slow
def test_a_swarm_adds_up_what_its_seeds_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "swarm.json"
    assert main(["swarm", "--seeds", "3", "--first", "4", "--jobs", "2", "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert (document["schema"], document["kind"], document["seeds_run"]) == (SCHEMA, "swarm", 3)
    assert document["verdicts"] == {"held": 3}
    jsonschema_rs.validator_for(simulation_schema()).validate(document)
    results = [MIXED.run(seed) for seed in (4, 5, 6)]
    assert document["virtual_ms"] == sum(result.virtual_ms for result in results)
    assert document["happened"] == dict(sorted(sum((Counter(r.happened) for r in results), Counter()).items()))
    assert "3 of 3 seeds from 4: 3 held" in capsys.readouterr().out


@pytest.mark.slow
def test_a_swarm_without_time_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["swarm", "--seeds", "3", "--within", "0"]) == 0
    assert "0 of 3 seeds" in capsys.readouterr().out


@pytest.mark.slow
def test_a_swarm_that_is_interrupted_has_not_held(capsys: pytest.CaptureFixture[str]) -> None:
    class CtrlC(trio.abc.Instrument):
        def before_io_wait(self, _timeout: float) -> None:
            if trio.lowlevel.current_statistics().tasks_living > 3:
                trio.lowlevel.remove_instrument(self)
                signal.raise_signal(signal.SIGINT)

    def loop(function: Callable[[], Awaitable[T]], /, *, clock: trio.abc.Clock | None = None) -> T:
        told.append(function.__name__)
        return trio.run(function, clock=clock, instruments=[CtrlC()] if len(told) > 1 else [])

    told: list[str] = []
    assert start(["swarm", "--seeds", "3", "--jobs", "1"], Tools(loop=loop, real=pytest.fail, serve=pytest.fail)) == 130
    shown = capsys.readouterr()
    assert "interrupted" in shown.err
    assert "0 of 3 seeds from 1: none" in shown.out


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 1_000 + SEEDS, EACH))
def test_many_seeds_hold(first: int) -> None:
    for seed in range(first, first + EACH):
        result = MIXED.run(seed)
        assert result.verdict is Verdict.HELD, (seed, result.problem, result.detail, *result.tail)


@pytest.mark.slow
def test_a_seed_of_the_swarm_is_one_run_in_two_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "many-faults", "--seed", "11", "--twice"]) == 0
    assert "the same digest in two processes" in capsys.readouterr().out
