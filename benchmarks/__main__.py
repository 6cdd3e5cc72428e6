"""``python -m benchmarks [NAME...]``: runs benchmarks and prints their tables; not 0 when one found a fault."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks import (
    bodies,
    cancellation,
    data_door,
    gateway,
    heartbeats,
    journal_group_commit,
    journal_start,
    simulator,
    soak,
    streams_200,
)
from benchmarks.answers import WrongAnswer
from benchmarks.harness import HarnessFailed
from benchmarks.load import LoadFailed
from benchmarks.report import Options, Report, machine, show, show_machine

BENCHMARKS: Final[Mapping[str, Callable[[Options], Report]]] = {
    "journal_group_commit": journal_group_commit.measure,
    "journal_start": journal_start.measure,
    "heartbeats": heartbeats.measure,
    "gateway": gateway.measure,
    "data_door": data_door.measure,
    "bodies": bodies.measure,
    "streams_200": streams_200.measure,
    "cancellation": cancellation.measure,
    "simulator": simulator.measure,
    "soak": soak.measure,
}
BY_NAME_ONLY: Final = frozenset({"heartbeats", "journal_start", "simulator", "soak"})
"""They take minutes; the soak is a check more than a measurement."""
REQUESTS_MIN: Final = 200


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks", description="What LunaNexa costs on this machine.")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"of {', '.join(BENCHMARKS)}; all but {' and '.join(sorted(BY_NAME_ONLY))} when none is given",
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of each measurement (default 3)")
    parser.add_argument("--requests", type=int, default=20_000, help="length of the soak (default 20000)")
    parser.add_argument(
        "--directory", type=Path, default=Path(tempfile.gettempdir()), help="where data lies: the disk that is measured"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in BENCHMARKS]
    if unknown or given.seconds <= 0 or given.rounds < 1 or given.requests < REQUESTS_MIN:
        numbers = f"--seconds and --rounds must be positive, --requests at least {REQUESTS_MIN}"
        parser.error(f"unknown: {', '.join(unknown)}" if unknown else numbers)
    options = Options(
        seconds=given.seconds, rounds=given.rounds, requests=given.requests, directory=given.directory.resolve()
    )
    before = machine(options.directory)
    if given.output == "table":
        print(show_machine(before), flush=True)
    reports: dict[str, Report] = {}
    for name in given.names or (name for name in BENCHMARKS if name not in BY_NAME_ONLY):
        print(f"running {name}", file=sys.stderr, flush=True)
        reports[name] = _run(name, options)
        if given.output == "table":
            print("\n" + show(reports[name]), flush=True)
    after = machine(options.directory)
    if given.output == "json":
        print(json.dumps({"machine": before, "reports": {name: _document(one) for name, one in reports.items()}}))
    else:
        print(f"\nload average at the end: {', '.join(map(str, after['load_average']))}")
    return 1 if any(report.faults for report in reports.values()) else 0


def _run(name: str, options: Options) -> Report:
    try:
        return BENCHMARKS[name](options)
    except (HarnessFailed, LoadFailed, WrongAnswer) as error:
        return Report(title=name, columns=("",), rows=(), figures={}, faults=(str(error),))


def _document(report: Report) -> dict[str, Any]:
    return attrs.asdict(report, filter=lambda attribute, _: attribute.name in ("title", "figures", "notes", "faults"))


if __name__ == "__main__":
    sys.exit(main())
