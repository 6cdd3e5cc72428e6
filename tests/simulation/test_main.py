"""The command: its documents, its exit codes, and what a failure tells."""

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import trio

from lunanexa_apps.codec import encode
from lunanexa_simulation.cli.told import failure_lines
from lunanexa_simulation.documents import SCHEMA, RunDocument, simulation_schema
from lunanexa_simulation.main import main
from lunanexa_simulation.planned import PLANNED
from lunanexa_simulation.results import run_document
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios import SCENARIOS, Scenario
from lunanexa_simulation.verdicts import LivenessBroken, SafetyBroken

Body = Callable[[Run], Awaitable[None]]


async def unsafe(run: Run) -> None:
    run.asked["one_receipt"] += 1
    run.promise("it starts", held=True)
    raise SafetyBroken("one_receipt: wl_1 has 2 receipts")


async def stuck(run: Run) -> None:
    run.trace.record("world", "waits")
    await trio.sleep_forever()


async def late(_: Run) -> None:
    raise LivenessBroken("served: not within 1 virtual ms")


async def crashing(_: Run) -> None:
    raise RuntimeError("of the program")


def document_of(body: Body, seed: int = 1) -> RunDocument:
    return run_document("planted", Scenario(name="planted", summary="", main=body).run(seed), "0123abc")


@pytest.mark.parametrize(
    ("body", "code", "word"),
    [
        (unsafe, 1, "safety_broken"),
        (stuck, 2, "liveness_broken"),
        (late, 2, "liveness_broken"),
        (crashing, 3, "crashed"),
    ],
)
def test_each_way_to_fail_has_its_code(body: Body, code: int, word: str) -> None:
    document = document_of(body)
    assert (document.exit_code, document.verdict) == (code, word)


def test_a_failure_tells_what_is_needed_to_see_it_again() -> None:
    document = document_of(unsafe, 5)
    told = json.loads(encode(document))
    assert told["invariants"] == [{"name": "one_receipt", "verdict": "broken", "times_asked": 1}]
    assert told["checks"] == [{"name": "it starts", "verdict": "held", "at_ms": 0}]
    assert (told["schema"], told["kind"], told["hardware_performance_validated"]) == (SCHEMA, "run", False)
    lines = failure_lines(document)
    assert "seed 5, commit 0123abc" in lines
    assert "broken: one_receipt: wl_1 has 2 receipts" in lines
    assert "again: lunanexa-sim run planted --seed 5" in lines
    assert any("it starts: held" in line for line in lines)
    assert "again: lunanexa-sim run planted --seed 5 --only 3,17" in failure_lines(document, only=[17, 3])


def test_each_document_is_in_the_schema_by_its_kind(capsys: pytest.CaptureFixture[str]) -> None:
    schema = simulation_schema()
    validator = jsonschema_rs.validator_for(schema)
    validator.validate(json.loads(encode(document_of(unsafe))))
    assert main(["list", "--all", "-o", "json"]) == 0
    validator.validate(json.loads(capsys.readouterr().out))
    kinds = {definition["properties"]["kind"]["const"] for definition in with_kind(schema["$defs"])}
    assert kinds == {"run", "swarm", "replay", "shrink", "list", "serve", "processes"}


def with_kind(definitions: Any) -> list[Any]:
    return [definition for definition in definitions.values() if "kind" in definition["properties"]]


def test_list_names_what_there_is_and_what_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SCENARIOS)
    assert main(["list", "--all", "-o", "json"]) == 0
    document = capsys.readouterr().out
    assert main(["list", "--all", "--json", str(tmp_path / "list.json")]) == 0
    assert (tmp_path / "list.json").read_text() == document
    told = json.loads(document)["scenarios"]
    planned = [one["name"] for one in told if one["waits_for"] is not None]
    assert planned == [one.name for one in PLANNED]
    assert not SCENARIOS.keys() & set(planned), "what is there waits for nothing"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["run"],
        ["run", "no-such"],
        ["run", "first-slice", "--seed", "x"],
        ["run", "first-slice", "--json", "/no/such"],
        ["run", "first-slice", "--report", "/no/such.html"],
        ["run", "first-slice", "--twice", "--only", "3"],
        ["run", "many-faults", "--only", "3,x"],
        ["swarm", "--seeds", "0"],
        ["replay", "--seed", "1"],
        ["processes", "--nodes", "0"],
        ["processes", "--rounds", "-1"],
        ["processes", "--json", "/no/such"],
    ],
)
def test_wrong_usage_is_64_and_no_verdict(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 64
    assert "Usage" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_writes_its_document_and_its_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, page = tmp_path / "run.json", tmp_path / "run.html"
    assert main(["run", "first-slice", "--seed", "4", "--json", str(path), "--report", str(page)]) == 0
    document = json.loads(path.read_text())
    assert (document["schema"], document["scenario"], document["seed"]) == (SCHEMA, "first-slice", 4)
    assert document["hardware_performance_validated"] is False
    assert {check["verdict"] for check in document["checks"]} == {"held"}
    assert {invariant["verdict"] for invariant in document["invariants"]} == {"held"}
    assert document["digest"] in capsys.readouterr().out
    assert document["digest"] in page.read_text()
    assert main(["run", "first-slice", "--seed", "4"]) == 0
    assert document["digest"] in capsys.readouterr().out, "nothing that looks on changes a run"


@pytest.mark.slow
def test_twice_compares_two_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    assert main(["run", "first-slice", "--seed", "2", "--twice", "--json", str(path)]) == 0
    assert json.loads(path.read_text())["deterministic"] is True
    assert "the same digest in two processes" in capsys.readouterr().out


@pytest.mark.slow
def test_replay_shows_the_world_at_an_instant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--scenario", "agent-kill", "--seed", "3", "--until", "2000"]) == 0
    shown = capsys.readouterr().out
    assert "agent-kill seed 3, stopped at 2000 virtual ms" in shown
    assert "controller: leads in epoch 1" in shown
    assert "sim-dgx-1: agent runs, ready, active" in shown
    assert re.search(r"^  journal: \d+ rows, a sync takes \d+ ms$", shown, re.MULTILINE), "nothing else is of note"
    assert main(["replay", "--scenario", "agent-kill", "--seed", "3", "--until", "99999999"]) == 0
    assert "was over after" in capsys.readouterr().out


@pytest.mark.slow
def test_shrink_asks_for_a_seed_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shrink", "--scenario", "agent-kill", "--seed", "3"]) == 64
    told = capsys.readouterr().err
    assert "does not fail" in told
    assert "Usage" not in told


@pytest.mark.slow
def test_only_mishaps_that_the_seed_has_can_be_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "agent-kill", "--seed", "3", "--only", "3"]) == 64
    told = capsys.readouterr()
    assert told.err == "Error: --only: seed 3 of agent-kill has no mishaps in store\n"
    assert told.out == ""


@pytest.mark.parametrize(("typed", "meant"), [("first-slise", "did you mean first-slice?"), ("no-such", "'no-such';")])
def test_of_a_misspelt_scenario_the_nearest_is_told(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", typed]) == 64
    told = capsys.readouterr().err
    assert meant in told
    assert "lunanexa-sim list" in told
