"""``lunanexa deployment`` as a user calls it, over a scripted controller."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from lunanexa_apps.cli import deployment
from lunanexa_core.outcomes import Outcome
from lunanexa_ports.http_client import HttpRequest
from tests.apps.scripted_http import Reply
from tests.apps.test_cli import REMOTE, call, refuse, tools

SPEC: dict[str, Any] = {"deployment": "tiny", "alias": "gemma", "replicas": 3, "engine": {"driver": "reference"}}
TOML = 'deployment = "tiny"\nalias = "gemma"\nreplicas = 3\n[engine]\ndriver = "reference"\n'
PLAN: dict[str, Any] = {
    "deployment": "tiny",
    "kind": "change",
    "generation": 3,
    "changes": [
        {"action": "restart", "node": "sim-dgx-1", "assignment": "asg_1"},
        {"action": "place", "node": "sim-dgx-2", "assignment": None},
    ],
    "unplaced": 1,
    "nodes": [
        {"node": "sim-dgx-1", "reasons": ["the node runs a replica of this deployment"]},
        {"node": "sim-dgx-2", "reasons": []},
        {"node": "sim-dgx-3", "reasons": ["the node is lost", "the node takes no new work"]},
    ],
    "fields": [{"field": "replicas", "before": 1, "after": 3}],
}
STATUS: dict[str, Any] = {
    "deployment": "tiny",
    "alias": "gemma",
    "generation": 2,
    "driver": "reference",
    "served_name": "tiny",
    "adopted": False,
    "ready": True,
    "queue": {"waiting": 1, "running": 2, "slots": 4, "limit": 256},
    "replicas_wanted": 2,
    "not_placed": {"sim-dgx-3": ["the node is lost"]},
    "declined": {"sim-dgx-2": "policy_program"},
    "replicas": [
        {
            "assignment": "asg_1",
            "node": "sim-dgx-1",
            "generation": 2,
            "state": "ready",
            "identity": "proven",
            "restarts": 0,
            "routable": True,
            "not_routable": None,
        }
    ],
}
DOCUMENT = {"spec": SPEC, "generation": 2, "status": STATUS}


class Controller:
    """Answers each route of deployments, and keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, Any, str | None]] = []

    def __call__(self, request: HttpRequest) -> Reply:
        if request.method != "GET":
            fence = dict(request.headers).get(b"if-match", b"").decode() or None
            body = json.loads(request.body) if request.body else None
            self.told.append((request.method, request.target, body, fence))
        match (request.method, request.target.removeprefix("/admin/v1")):
            case ("GET", "/deployments"):
                answer: Any = {"data": [{"spec": SPEC, "generation": 2}]}
            case ("GET", "/status"):
                answer = {"deployments": [STATUS]}
            case ("GET", "/deployments/tiny"):
                answer = DOCUMENT
            case ("POST", "/deployments:plan"):
                answer = PLAN
            case ("PUT", "/deployments/tiny"):
                answer = {"deployment": "tiny", "generation": 3}
            case ("PUT", "/deployments/tiny/replicas"):
                answer = DOCUMENT | {"generation": 3}
            case ("DELETE", "/deployments/tiny"):
                answer = {"deployment": "tiny", "removed": True}
            case other:
                raise AssertionError(other)
        return Reply(200, [json.dumps(answer).encode()])


def ask(*arguments: str, server: Any = None, stdin: str | None = None) -> Any:
    return call(deployment.command, *arguments, server=server or Controller(), stdin=stdin, environment=REMOTE)


@pytest.fixture(params=["tiny.toml", "tiny.json"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / request.param
    path.write_text(TOML if path.suffix == ".toml" else json.dumps(SPEC))
    return str(path)


def test_a_plan_says_what_and_why_not(file: str) -> None:
    controller = Controller()
    result = ask("plan", "-f", file, server=controller)
    assert result.exit_code == 0
    for part in (
        "tiny would change, to generation 3",
        "1 replica would find no node",
        "the node is lost; the node takes no new work",
        "a new one",
    ):
        assert part in result.stdout
    assert controller.told == [("POST", "/admin/v1/deployments:plan", SPEC, None)]
    assert json.loads(ask("plan", "-f", file, "-o", "json").stdout) == PLAN


def test_what_is_applied_is_what_the_file_says(file: str) -> None:
    controller = Controller()
    result = ask("apply", "-f", file, "--generation", "2", server=controller)
    assert (result.exit_code, result.stdout) == (0, "tiny is in force, in generation 3\n")
    assert "lunanexa deployment show tiny" in result.stderr
    assert controller.told == [("PUT", "/admin/v1/deployments/tiny", SPEC, "2")]


@pytest.mark.parametrize("text", [TOML, json.dumps(SPEC)])
def test_standard_input_will_do(text: str) -> None:
    controller = Controller()
    assert ask("apply", "-f", "-", server=controller, stdin=text).exit_code == 0
    assert controller.told[0][2] == SPEC


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("a.toml", "deployment = ", "TOML"),
        ("a.toml", 'deployment = "tiny"\nsince = 2026-01-01\n', "TOML"),
        ("a.json", "{", "JSON"),
        ("a.json", "[]", "no JSON object"),
        ("a.json", "{}", "'deployment'"),
        ("a.json", '{"deployment": "a b"}', "'deployment'"),
        ("a.json", '{"deployment": "tiny", "alias": "\\ud800"}', "JSON"),
        ("a.json", "\0" * (1 << 21), "longer"),
        ("none.json", None, "No such file"),
    ],
)
def test_a_file_that_will_not_do_is_told(tmp_path: Path, name: str, text: str | None, word: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    result = ask("apply", "-f", str(tmp_path / name))
    assert (result.exit_code, word in result.stderr) == (78, True), result.stderr
    assert "next:" in result.stderr


def test_the_list_and_one_of_it() -> None:
    listed = ask("list").stdout
    for part in ("tiny", "gemma", "reference", "1 of 2", "yes", "sim-dgx-2 does not run tiny (policy_program)"):
        assert part in listed
    shown = ask("show", "tiny").stdout
    for part in ("asg_1", "sim-dgx-1", "proven", "2, 1 waiting", "One more replica finds no place", "the node is lost"):
        assert part in shown
    assert "sim-dgx-2 does not run tiny (policy_program)" in shown
    assert json.loads(ask("show", "tiny", "-o", "json").stdout) == DOCUMENT
    assert json.loads(ask("list", "-o", "json").stdout)["data"][0]["spec"] == SPEC


def test_an_exclusive_one_tells_what_it_waits_for(file: str) -> None:
    places = [
        {"assignment": "asg_1", "node": "sim-dgx-1", "for_ms": 25_250},
        {"assignment": "asg_2", "node": "sim-dgx-2", "for_ms": None},
    ]

    def server(request: HttpRequest) -> Reply:
        if request.method == "POST":
            return Reply(200, [json.dumps(PLAN | {"awaited_places": places}).encode()])
        spec, status = SPEC | {"exclusive": True, "cut_off_keep_ms": 0}, STATUS | {"awaited_places": places}
        return Reply(200, [json.dumps({"spec": spec, "generation": 2, "status": status}).encode()])

    shown, plan = ask("show", "tiny", server=server).stdout, ask("plan", "-f", file, server=server).stdout
    for page in (shown, plan):
        told = " ".join(page.split())
        assert "a place waits until sim-dgx-1 says that asg_1 is gone, or was silent for another 25.2 s" in told
        assert "a place waits until sim-dgx-2 says that asg_2 is gone, whatever its silence" in told
    assert "a place is filled again when its engine is gone for certain" in " ".join(shown.split())
    assert "kept for 0 ms after the lease" in shown


def test_scaling_and_deleting() -> None:
    controller = Controller()
    scaled = ask("scale", "tiny", "1", "--generation", "2", server=controller)
    assert scaled.stdout == "tiny shall have 1 replica, in generation 3\n"
    assert ask("scale", "tiny", "65", server=controller).exit_code == 2
    assert ask("delete", "tiny", server=controller, stdin="n\n").exit_code == 1
    assert ask("delete", "tiny", "-o", "json", server=controller).exit_code == 1
    assert ask("delete", "tiny", "--yes", server=controller).stdout == "tiny is deleted\n"
    assert controller.told == [
        ("PUT", "/admin/v1/deployments/tiny/replicas", {"replicas": 1}, "2"),
        ("DELETE", "/admin/v1/deployments/tiny", None, None),
    ]


def test_what_goes_wrong_says_what_to_do() -> None:
    nobody = ask("show", "none", server=refuse(Outcome.NOT_FOUND, "There is no deployment 'none'."))
    assert (nobody.exit_code, "lunanexa deployment list" in nobody.stderr) == (66, True)
    stale = ask("scale", "tiny", "2", server=refuse(Outcome.STALE_GENERATION, "The deployment is at generation 3."))
    assert (stale.exit_code, "generation 3" in stale.stderr) == (65, True)


def test_names_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in REMOTE.items():
        monkeypatch.setenv(name, value)
    completion = ShellComplete(deployment.command, {"obj": tools(Controller())}, "lunanexa", "_LUNANEXA_COMPLETE")
    assert [item.value for item in completion.get_completions(["scale"], "t")] == ["tiny"]
    kinds = [item.type for item in completion.get_completions(["plan", "-f"], "a")]
    assert kinds == ["file"]
