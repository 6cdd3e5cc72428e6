"""``lunanexa-node`` in the hands of somebody who errs: each mistake is named at its option, with what mends it."""

import subprocess
import sys
from pathlib import Path

import pytest

from lunanexa_apps.node.cli.checks import OF_AIR_GAPPED, OF_FOLLOWER
from tests.apps.test_cli_air_gap import Machine, problems, run

DOCTOR = [sys.executable, "-m", "lunanexa_apps.node.main", "doctor"]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def everything(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Size, and when contents and rights changed, of whatever lies there."""
    found = {str(path): path.lstat() for path in (folder, *folder.rglob("*"))}
    return {path: (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for path, stat in found.items()}


def test_places_of_media_are_refused_for_a_node_that_has_none(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    media = ("--inbox", str(tmp_path / "inbox"), "--outbox", str(tmp_path / "outbox"))
    wanted = {"--inbox": OF_AIR_GAPPED, "--outbox": OF_AIR_GAPPED}
    assert problems(machine.look("doctor", capsys, *media)).items() >= wanted.items(), "nothing is there yet"
    machine.enrol()
    found = machine.look("doctor", capsys, *media)
    assert found["enrolment"][0] == "ok"
    assert problems(found).items() >= wanted.items()
    assert not wanted.keys() & machine.look("doctor", capsys).keys()
    assert "--outbox" not in machine.look("doctor", capsys, *media[:2])


def test_options_of_controllers_are_refused_for_an_air_gapped_node(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert machine.init() == 0
    options = ("--controller", "https://127.0.0.1:1", "--data-listen", "none")
    found = problems(machine.look("doctor", capsys, *options))
    assert found["--controller"] == found["--data-listen"] == OF_FOLLOWER
    assert not {"--controller", "--data-listen"} & machine.look("doctor", capsys).keys()


@pytest.mark.parametrize("verb", ["doctor", "check-config", "run"])
def test_an_empty_data_dir_is_not_the_directory_of_the_shell(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(verb, "--data-dir", "") == 2
    assert "'--data-dir': it is empty: name the directory" in capsys.readouterr().err


def test_a_wrong_data_dir_is_named_with_the_right_one(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.enrol()
    right, machine.data = machine.data, machine.data / "node"
    before = everything(right)
    for verb in ("doctor", "check-config"):
        assert f"name that one, --data-dir {right}" in problems(machine.look(verb, capsys))["data directory"]
    machine.policy.write_text("")
    assert machine.run("run", "--log-format", "json") == 78
    assert f"name that one, --data-dir {right}" in capsys.readouterr().err
    assert everything(right) == before, "no node within the node"
    machine.data = machine.policy
    for verb in ("doctor", "check-config"):
        assert "is no directory" in problems(machine.look(verb, capsys))["data directory"]


def test_looking_at_a_node_that_rests_changes_nothing(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.enrol()
    before = everything(machine.data)
    assert "node.sqlite3" in str(before)
    for verb in ("doctor", "check-config"):
        machine.look(verb, capsys)
    assert everything(machine.data) == before


@pytest.mark.thorough
def test_findings_for_which_there_is_no_room_are_told(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        command = [*DOCTOR, "--data-dir", str(tmp_path)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 74
    assert done.stderr.startswith("error: the output can't be written (No space left on device)\nnext: ")
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize("width", [60, 40])
def test_on_a_narrow_screen_no_line_is_too_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run("doctor", "--data-dir", str(tmp_path)) == 1
    shown = capsys.readouterr().out
    assert all(len(line) <= width for line in shown.splitlines())
    assert "next: have a token minted" in " ".join(shown.split())
