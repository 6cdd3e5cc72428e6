"""The first scenario, from some seeds, and that a run is the same one in every process."""

import os
import sys

import pytest
import trio

from lunanexa_simulation.checkers import INVARIANTS, replay_equals_live
from lunanexa_simulation.run import Verdict
from lunanexa_simulation.scenarios import SCENARIOS

FIRST_SLICE = SCENARIOS["first-slice"]
NOTHING_BUT_A_DIGEST = """
from lunanexa_simulation.scenarios import SCENARIOS
for seed in (1, 2, 3):
    print(SCENARIOS["first-slice"].run(seed).digest)
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
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
    printed = []
    for hash_seed in ("0", "1", "77"):
        ended = await trio.run_process(
            [sys.executable, "-c", NOTHING_BUT_A_DIGEST],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_stdout=True,
        )
        printed.append(ended.stdout.split())
    assert printed[0] == printed[1] == printed[2]
    assert len(set(printed[0])) == 3
