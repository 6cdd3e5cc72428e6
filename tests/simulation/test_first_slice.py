"""The first scenario, from some seeds, and that a run is the same one in every process."""

import os
import sys

import pytest
import trio

from lunanexa_simulation.checkers import INVARIANTS
from lunanexa_simulation.invariants.store import replay_equals_live
from lunanexa_simulation.scenarios import SCENARIOS
from lunanexa_simulation.verdicts import Verdict

FIRST_SLICE = SCENARIOS["first-slice"]
NOTHING_BUT_DIGESTS = """
from lunanexa_simulation.scenarios import SCENARIOS
for scenario in SCENARIOS.values():
    print(scenario.run(1).digest)
"""


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_it_holds(seed: int) -> None:
    result = FIRST_SLICE.run(seed)
    assert result.verdict is Verdict.HELD, (result.problem, result.detail, *result.tail)
    assert all(promise.held for promise in result.promises)
    assert set(result.asked) == {check.__name__ for check in (*INVARIANTS, replay_equals_live)}
    assert min(result.asked[check.__name__] for check in INVARIANTS) >= result.instants - 5
    # Before the controller's death, and at the end.
    assert result.asked[replay_equals_live.__name__] == 2


@pytest.mark.slow
async def test_it_is_the_same_run_in_every_process() -> None:
    printed: dict[str, list[bytes]] = {}

    async def one(hash_seed: str) -> None:
        command = [sys.executable, "-c", NOTHING_BUT_DIGESTS]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ended = await trio.run_process(command, env=environment, capture_stdout=True)
        printed[hash_seed] = ended.stdout.split()

    async with trio.open_nursery() as nursery:
        for hash_seed in ("0", "77"):
            nursery.start_soon(one, hash_seed)
    assert printed["0"] == printed["77"]
    # One digest a scenario: nothing that is compared is empty.
    assert len(set(printed["0"])) == len(SCENARIOS)
