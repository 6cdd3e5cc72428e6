"""What `make check` leaves to `make test`: most Hypothesis examples, and the modules that are marked as a whole."""

import os
import re
from pathlib import Path
from typing import Final

_QUICK: Final = "TESTS_QUICK" in os.environ
_FEW: Final = 10
_MARKED: Final = re.compile(r"^pytestmark = .*pytest\.mark\.(slow|thorough|by_hand)\b", re.MULTILINE)


def examples(count: int) -> int:
    """For ``settings(max_examples=...)``, which would overrule a profile."""
    return min(count, _FEW) if _QUICK else count


def left_out(path: Path) -> bool:
    """Whether no test of a module would run: then it isn't even imported, which takes a good part of the time."""
    return _QUICK and path.name.startswith("test_") and _MARKED.search(path.read_text()) is not None
