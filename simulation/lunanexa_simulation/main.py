"""Composition root of ``lunanexa-sim``: runs scenarios from seeds and says how they ended.

Exit codes: 0 everything held, 1 safety broken, 2 liveness broken, 3 the world crashed, 4 not deterministic,
64 wrong usage. What was found is about protocol and recovery; it says nothing of accelerator speed.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import trio

from lunanexa_simulation.run import Kept
from lunanexa_simulation.scenarios import SCENARIOS, Scenario
from lunanexa_simulation.verdicts import Verdict

SCHEMA: Final = "lunanexa.simulation.v1"
STDOUT: Final = "-"
HASH_SEEDS: Final = ("1", "2")
_USAGE: Final = 64
_HERE: Final = Path(__file__).resolve()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # Not argparse's 2, which says here that liveness was broken.
        self.print_usage(sys.stderr)
        self.exit(_USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    given = _parser().parse_args(arguments)
    if given.command == "list":
        for scenario in SCENARIOS.values():
            print(f"{scenario.name:<16} {scenario.summary}")
        return Verdict.HELD.value
    scenario = SCENARIOS[given.scenario]
    commit = trio.run(_commit)
    document = trio.run(_run_twice, scenario, given.seed) if given.twice else run_once(scenario, given.seed)
    document["commit"] = commit
    return _tell(document, given.json)


def run_once(scenario: Scenario, seed: int) -> dict[str, Any]:
    """One run as a document; ``commit`` is added by who knows it."""
    result = scenario.run(seed)
    held = result.verdict is Verdict.HELD
    return {
        "schema": SCHEMA,
        "scenario": scenario.name,
        "seed": result.seed,
        "commit": None,
        "verdict": result.verdict.name.lower(),
        "exit_code": result.verdict.value,
        "problem": result.problem,
        "detail": result.detail or None,
        "digest": result.digest,
        "virtual_ms": result.virtual_ms,
        "quiescent_instants": result.instants,
        "scheduler_steps": result.steps,
        "checks": [_check(check) for check in result.promises],
        "invariants": [_invariant(name, asked, result.problem) for name, asked in sorted(result.asked.items())],
        "trace_tail": [] if held else list(result.tail),
        "deterministic": None,
        "hardware_performance_validated": False,
    }


def _check(check: Kept) -> dict[str, Any]:
    return {"name": check.name, "verdict": _word(check.held), "at_ms": check.at_ms}


def _invariant(name: str, asked: int, problem: str | None) -> dict[str, Any]:
    return {"name": name, "verdict": _word(not (problem or "").startswith(f"{name}: ")), "times_asked": asked}


def _word(held: bool) -> str:
    return "held" if held else "broken"


async def _run_twice(scenario: Scenario, seed: int) -> dict[str, Any]:
    """The same run in two processes whose hashes of strings differ. One process can't tell: the order of a set
    is the same in it each time."""
    documents: dict[str, dict[str, Any] | None] = {}

    async def one(hash_seed: str) -> None:
        program = [sys.executable, "-m", "lunanexa_simulation.main"]
        command = [*program, "run", scenario.name, "--seed", str(seed), "--json", STDOUT]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ended = await trio.run_process(command, env=environment, capture_stdout=True, check=False)
        documents[hash_seed] = json.loads(ended.stdout or b"null")

    async with trio.open_nursery() as nursery:
        for hash_seed in HASH_SEEDS:
            nursery.start_soon(one, hash_seed)
    first, second = (documents[hash_seed] for hash_seed in HASH_SEEDS)
    if first is None or second is None:
        # What it says is on standard error already.
        raise SystemExit(Verdict.CRASHED.value)
    same = first["digest"] == second["digest"]
    first["deterministic"] = same
    if not same:
        first["verdict"] = Verdict.NOT_DETERMINISTIC.name.lower()
        first["exit_code"] = Verdict.NOT_DETERMINISTIC.value
        first["problem"] = f"digests of two processes differ: {first['digest']} and {second['digest']}"
    return first


async def _commit() -> str | None:
    """The commit of the checkout that this file stands in, where it stands in one."""
    git = partial(trio.run_process, capture_stdout=True, capture_stderr=True, check=False, cwd=_HERE.parent)
    try:
        ours = await git(["git", "ls-files", "--error-unmatch", _HERE.name])
        head = await git(["git", "rev-parse", "HEAD"])
    except OSError:
        return None
    if ours.returncode or head.returncode:
        return None
    return str(head.stdout.decode().strip())


def _tell(document: Mapping[str, Any], path: str | None) -> int:
    text = json.dumps(document, indent=2) + "\n"
    if path == STDOUT:
        sys.stdout.write(text)
    else:
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        print("\n".join(_lines(document)))
    return int(document["exit_code"])


def _lines(document: Mapping[str, Any]) -> list[str]:
    name, seed = document["scenario"], document["seed"]
    lines = [
        f"{name} seed {seed}: {document['verdict']}, {document['virtual_ms'] / 1_000:.3f} virtual seconds, "
        f"{len(document['checks'])} checks, {len(document['invariants'])} invariants at "
        f"{document['quiescent_instants']} instants",
        f"digest {document['digest']}",
    ]
    if document["deterministic"]:
        lines.append("deterministic: the same digest in two processes")
    if document["exit_code"]:
        lines += [
            f"commit {document['commit'] or 'unknown'}",
            f"broken: {document['problem']}",
            *(document["detail"] or "").splitlines(),
            "the end of the trace:",
            *document["trace_tail"],
            f"again: lunanexa-sim run {name} --seed {seed}",
        ]
    return lines


def _report_path(path: str) -> str:
    """Asked before the run, which takes seconds and ends with a result that should not be lost."""
    folder = os.path.dirname(os.path.abspath(path))
    if path != STDOUT and (not path or os.path.isdir(path) or not os.access(folder, os.W_OK)):
        raise argparse.ArgumentTypeError(f"{path!r} can't be written")
    return path


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="lunanexa-sim", description="The fleet in one process, from one seed, on virtual time.")
    verbs = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    verbs.add_parser("list", help="name the scenarios")
    run = verbs.add_parser("run", help="run one scenario")
    run.add_argument("scenario", choices=sorted(SCENARIOS), metavar="NAME")
    run.add_argument("--seed", type=int, default=1, help="what decides the whole run (default 1)")
    run.add_argument("--json", metavar="PATH", type=_report_path, help="write the report there; - is standard output")
    run.add_argument("--twice", action="store_true", help="in two processes, which must agree")
    return parser


if __name__ == "__main__":
    sys.exit(main())
