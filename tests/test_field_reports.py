"""The page on field reports names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_each_named_test_exists() -> None:
    page = (ROOT / "docs" / "field-reports.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:core|apps|adapters|end_to_end)/\w+\.py)(?:::(\w+))?`", page)
    assert len(named) > 15
    for path, test in named:
        source = (ROOT / "tests" / path).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in source, (path, test)
