"""The command: its reports and its exit codes."""

import json
from pathlib import Path

import pytest
import trio

from lunanexa_simulation import main as command
from lunanexa_simulation.main import SCHEMA, main
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios import SCENARIOS, Scenario
from lunanexa_simulation.verdicts import LivenessBroken, SafetyBroken


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


@pytest.mark.parametrize(
    ("body", "code", "word"),
    [
        (unsafe, 1, "safety_broken"),
        (stuck, 2, "liveness_broken"),
        (late, 2, "liveness_broken"),
        (crashing, 3, "crashed"),
    ],
)
def test_each_way_to_fail_has_its_code(body: object, code: int, word: str) -> None:
    scenario = Scenario(name="planted", summary="", main=body)  # type: ignore[arg-type]  # one of the above
    document = command.run_once(scenario, 1)
    assert (document["exit_code"], document["verdict"]) == (code, word)


def test_a_failure_tells_what_is_needed_to_see_it_again() -> None:
    document = command.run_once(Scenario(name="planted", summary="", main=unsafe), 5)
    assert document["invariants"] == [{"name": "one_receipt", "verdict": "broken", "times_asked": 1}]
    assert document["checks"] == [{"name": "it starts", "verdict": "held", "at_ms": 0}]
    lines = command._lines({**document, "commit": "0123abc"})
    assert "commit 0123abc" in lines
    assert "broken: one_receipt: wl_1 has 2 receipts" in lines
    assert "again: lunanexa-sim run planted --seed 5" in lines
    assert any("it starts: held" in line for line in lines)


def test_list_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SCENARIOS)


@pytest.mark.slow
def test_a_run_writes_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    assert main(["run", "first-slice", "--seed", "4", "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert document["schema"] == SCHEMA
    assert (document["scenario"], document["seed"]) == ("first-slice", 4)
    assert document["hardware_performance_validated"] is False
    assert {check["verdict"] for check in document["checks"]} == {"held"}
    assert {invariant["verdict"] for invariant in document["invariants"]} == {"held"}
    assert document["digest"] in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["run"],
        ["run", "no-such"],
        ["run", "first-slice", "--seed", "x"],
        ["run", "first-slice", "--json", "/no/such"],
        ["swarm"],
    ],
)
def test_wrong_usage_is_64_and_no_verdict(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 64
    assert "usage" in capsys.readouterr().err


@pytest.mark.slow
def test_twice_compares_two_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    assert main(["run", "first-slice", "--seed", "2", "--twice", "--json", str(path)]) == 0
    assert json.loads(path.read_text())["deterministic"] is True
    assert "the same digest in two processes" in capsys.readouterr().out
