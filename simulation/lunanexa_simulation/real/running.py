"""A run from its folder to its verdict. It leaves no process behind, however it ends."""

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import attrs
import trio

from lunanexa_apps.engine.settings import EngineSettings
from lunanexa_ports.children import Children
from lunanexa_ports.errors import PortFault
from lunanexa_ports.http_client import HttpClient
from lunanexa_simulation.client import Oracle
from lunanexa_simulation.engine_program import MODEL
from lunanexa_simulation.real.fleet import SERVED_NAME, Fleet
from lunanexa_simulation.real.managed import tail_of
from lunanexa_simulation.real.orders import choose_places
from lunanexa_simulation.real.plan import Strike, strikes_of
from lunanexa_simulation.real.promises import NO_CRASH, ProcessCrashed, Promises
from lunanexa_simulation.real.reaper import reaper_order
from lunanexa_simulation.real.scenario import Scenario
from lunanexa_simulation.real.tools import RealTools
from lunanexa_simulation.real.traffic import Traffic
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.run import Kept
from lunanexa_simulation.trace import Trace
from lunanexa_simulation.verdicts import (
    LivenessBroken,
    SafetyBroken,
    Verdict,
    detail_of,
    first_cause,
    problem_of,
    verdict_of,
)

START_S: Final = 120.0
STRIKE_S: Final = 120.0
"""No run takes longer than a start, so much for each strike, and an end."""
SHOW_S: Final = 0.2
TAIL_LINES: Final = 20
CLEAN_S: Final = 10.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Board(Protocol):
    """Where a run shows how far it is."""

    def show(self, line: str) -> None:
        """What is done now; it takes the place of what was shown before."""

    def say(self, line: str) -> None:
        """What has been done; it stays."""


@attrs.frozen(kw_only=True)
class RealOrder:
    """What is to be run. ``folder`` is empty; ``keep``: it stays, also where the run can't say so any more."""

    seed: int
    nodes: int
    rounds: int
    folder: Path
    keep: bool


@attrs.frozen(kw_only=True)
class RealResult:
    """How it ended. ``logs``: the ends of the logs of who was involved in what broke."""

    verdict: Verdict
    problem: str | None
    detail: str
    wall_ms: int
    kept: tuple[Kept, ...]
    happened: Mapping[str, int]
    strikes: tuple[Strike, ...]
    logs: Mapping[str, tuple[str, ...]]


@attrs.define
class _Stage:
    """What is there of a run, as far as it has come."""

    strikes: tuple[Strike, ...]
    promises: Promises = attrs.Factory(Promises)
    happened: Counter[str] = attrs.Factory(Counter)
    fleet: Fleet | None = None
    scenario: Scenario | None = None


async def run_real(order: RealOrder, tools: RealTools, board: Board) -> RealResult | None:
    """The whole run; nothing where a signal ended it. Returns when everything is gone."""
    result: RealResult | None = None
    run = trio.CancelScope()
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_obey, signals, run)
            with run:
                result = await _run(order, tools, board)
            nursery.cancel_scope.cancel("the run is over")
    return result


async def _obey(signals: AsyncIterator[int], run: trio.CancelScope) -> None:
    """The first one ends the run; more of them don't disturb its cleaning up, which takes its time."""
    async for _ in signals:
        run.cancel("a signal")


async def _run(order: RealOrder, tools: RealTools, board: Board) -> RealResult:
    stage, http = _Stage(strikes_of(order.seed, nodes=order.nodes, rounds=order.rounds)), tools.http()
    with tools.children() as children:
        reaper = await children.start(reaper_order(order.folder, os.environ, keep=order.keep))
        try:
            broken = await _attempt(stage, order, tools, board, children, http)
        finally:
            with trio.move_on_after(CLEAN_S, shield=True):
                await http.aclose()
                if stage.fleet is not None:
                    await stage.fleet.end_at_once()
                reaper.kill()  # One that is left cleans up when this process is gone.
                await reaper.wait()
    told_all = broken is None or isinstance(broken, SafetyBroken | ProcessCrashed | PortFault)
    return RealResult(
        verdict=verdict_of(broken),
        problem=None if broken is None else str(broken) if told_all else problem_of(broken),
        detail="" if broken is None or told_all else detail_of(broken),
        wall_ms=stage.promises.now_ms,
        kept=tuple(stage.promises.kept),
        happened=dict(stage.happened),
        strikes=stage.strikes,
        logs={} if broken is None else _tails(stage, broken),
    )


async def _attempt(
    stage: _Stage, order: RealOrder, tools: RealTools, board: Board, children: Children, http: HttpClient
) -> BaseException | None:
    """What broke."""
    limit_s = START_S + STRIKE_S * (len(stage.strikes) + 1)
    try:
        with trio.move_on_after(limit_s) as limit:
            await _perform(stage, order, tools, board, children, http)
    except BaseExceptionGroup as group:
        broken: BaseException = first_cause(group)
        crash = None if stage.fleet is None else await stage.fleet.crash()
        broken = crash or broken  # It says more than what others saw of it.
        if isinstance(broken, ProcessCrashed):
            stage.promises.note(NO_CRASH, held=False)
        return broken
    except PortFault as fault:
        return fault
    return LivenessBroken(f"the whole run: not over after {limit_s:.0f} s") if limit.cancelled_caught else None


async def _perform(
    stage: _Stage, order: RealOrder, tools: RealTools, board: Board, children: Children, http: HttpClient
) -> None:
    streams, oracle = Streams(order.seed), Oracle(EngineSettings(names=(SERVED_NAME,)), MODEL)
    places = await choose_places(order.folder, order.nodes, streams.stream("ports"))
    async with trio.open_nursery() as nursery:
        fleet = stage.fleet = Fleet(
            places,
            stage.promises,
            children=children,
            http=http,
            trace=Trace(),
            nursery=nursery,
            environment=os.environ,
        )
        traffic = Traffic(oracle, stage.promises, streams, stage.happened)
        scenario = stage.scenario = Scenario(fleet, traffic, stage.promises, stage.strikes, oracle)
        nursery.start_soon(_show, board, scenario, traffic)
        await scenario.play(tools, board.say)
        nursery.cancel_scope.cancel("the run is over")


def _tails(stage: _Stage, broken: BaseException) -> dict[str, tuple[str, ...]]:
    """The ends of the logs of who was involved, and of their engines."""
    if stage.fleet is None or stage.scenario is None:
        return {}
    involved = [broken.name] if isinstance(broken, ProcessCrashed) else stage.scenario.involved
    places = stage.fleet.places
    files = {name: places.log(name) for name in involved}
    for number in places.nodes:
        engines = places.engine_logs(number)
        if f"agent {number}" in involved and engines:
            files[f"engine {number}"] = engines[-1]
    return {name: tuple(tail_of(file, TAIL_LINES)) for name, file in files.items()}


async def _show(board: Board, scenario: Scenario, traffic: Traffic) -> None:
    while True:
        given = sum(count for name, count in traffic.happened.items() if name.startswith("answer "))
        board.show(f"{scenario.doing}; {given} answers, {traffic.asking} callers wait")
        await trio.sleep(SHOW_S)
