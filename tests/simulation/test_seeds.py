"""Seeds that once found a fault never find it again."""

from functools import partial
from pathlib import Path

import attrs
import pytest

from lunanexa_simulation.mishaps import NEWEST
from lunanexa_simulation.run import Manner
from lunanexa_simulation.scenarios import SCENARIOS, Scenario, many_faults
from lunanexa_simulation.verdicts import Verdict

SEEDS = Path(__file__).with_name("seeds.txt")
DRAWS = "many-faults"


def kept() -> list[tuple[Scenario, int, Manner]]:
    """A seed of what draws its mishaps means something only with the drawing of its time, and for as long as it was."""
    found = []
    for line in SEEDS.read_text(encoding="utf-8").splitlines():
        match line.partition("#")[0].split():
            case [name, seed, drawing, *minutes]:
                assert name == DRAWS, line
                assert 1 <= int(drawing) <= NEWEST, line
                as_then = attrs.evolve(SCENARIOS[name], main=partial(many_faults.main, drawing=int(drawing)))
                assert len(minutes) <= 1, line
                manner = Manner(faults_ms=round(float(minutes[0]) * 60_000) if minutes else None)
                found.append((as_then, int(seed), manner))
            case [name, seed]:
                assert name != DRAWS, line
                found.append((SCENARIOS[name], int(seed), Manner()))
            case words:
                assert not words, line
    return found


def test_every_line_can_be_read() -> None:
    assert len(kept()) >= 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "seed", "manner"), [pytest.param(*one, id=f"{one[0].name}-{one[1]}") for one in kept()]
)
def test_every_kept_seed_holds(scenario: Scenario, seed: int, manner: Manner) -> None:
    result = scenario.run(seed, manner)
    assert result.verdict is Verdict.HELD, (result.problem, *result.tail)
