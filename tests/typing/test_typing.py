"""What the type checkers must accept and must refuse, so that a changed setting can't disarm them silently.

Each file of cases/ names the complaints it must cause as comments on the lines that cause them
(``# says mypy: CODE``, ``# says pyright: RULE``); it must cause no others.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = sorted((Path(__file__).parent / "cases").glob("*.py"))

Complaint = tuple[str, int, str]

pytestmark = pytest.mark.slow


def expected(checker: str) -> set[Complaint]:
    marker = re.compile(rf"# says {checker}: ([\w-]+)")
    return {
        (path.name, number, code)
        for path in CASES
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        for code in marker.findall(line)
    }


def run(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


def test_mypy_refuses_exactly_what_it_should() -> None:
    output = run(sys.executable, "-m", "mypy", "--no-pretty", "--no-error-summary", *map(str, CASES))
    complaint = re.compile(r"^(?:.*/)?(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", re.MULTILINE)
    found = {(name, int(number), code) for name, number, code in complaint.findall(output)}
    assert found == expected("mypy"), output


def test_pyright_refuses_exactly_what_it_should() -> None:
    output = run(sys.executable, "-m", "pyright", "--outputjson", *map(str, CASES))
    found = {
        (Path(item["file"]).name, item["range"]["start"]["line"] + 1, item["rule"])
        for item in json.loads(output)["generalDiagnostics"]
    }
    assert found == expected("pyright"), output
