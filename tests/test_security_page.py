"""The threat model names tests that exist, one for each threat at least."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
_NAMED = re.compile(r"`((?:core|apps|adapters|simulation|end_to_end)/\w+\.py)(?:::(\w+))?`")


def test_each_threat_is_held_by_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    heads = [place for place, line in enumerate(rows) if line == "| threat | measure | held by |"]
    threats = [line for place in heads for line in _rows_below(rows, place)]
    assert len(threats) > 30
    for line in threats:
        named = _NAMED.findall(line)
        assert named, line
        for path, test in named:
            source = (ROOT / "tests" / path).read_text(encoding="utf-8")
            assert not test or f"def {test}(" in source, (path, test)


def _rows_below(rows: list[str], place: int) -> list[str]:
    found = []
    for line in rows[place + 2 :]:
        if line.startswith("| threat |") or line.count("|") != rows[place].count("|"):
            break
        found.append(line)
    return found
