"""Every scenario, each from two seeds, and from one of them in two processes. Of ``many-faults`` there is a swarm."""

import os
import sys

import pytest
import trio

from lunanexa_simulation.scenarios import SCENARIOS
from lunanexa_simulation.verdicts import Verdict

ONE_SEED = ("cancellation", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("overload", "reboot")))
"""What shows most in a second; all others run with those of many seeds."""


@pytest.mark.parametrize("name", ONE_SEED)
def test_it_holds(name: str) -> None:
    result = SCENARIOS[name].run(1)
    assert result.verdict is Verdict.HELD, (result.problem, result.detail, *result.tail)
    assert result.asked["replay_equals_live"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - {"many-faults"}))
def test_it_holds_from_another_seed(name: str) -> None:
    result = SCENARIOS[name].run(100)
    assert result.verdict is Verdict.HELD, (result.problem, result.detail, *result.tail)


TOLD = """
from lunanexa_simulation.scenarios import SCENARIOS
for name, scenario in SCENARIOS.items():
    result = scenario.run(1)
    print(name, result.verdict.name, result.digest, result.problem)
"""


@pytest.mark.slow
async def test_it_holds_and_is_the_same_run_in_every_process() -> None:
    told: dict[str, list[bytes]] = {}

    async def one(hash_seed: str) -> None:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ended = await trio.run_process([sys.executable, "-c", TOLD], env=environment, capture_stdout=True)
        told[hash_seed] = ended.stdout.splitlines()

    async with trio.open_nursery() as nursery:
        for hash_seed in ("0", "77"):
            nursery.start_soon(one, hash_seed)
    assert [line.split()[:2] for line in told["0"]] == [[name.encode(), b"HELD"] for name in SCENARIOS], told["0"]
    assert told["0"] == told["77"]
    assert len({line.split()[2] for line in told["0"]}) == len(SCENARIOS), "nothing that is compared is empty"
