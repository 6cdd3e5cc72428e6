"""``lunanexa models|requests|explain|completion`` as a user calls them, over a scripted controller."""

import io
import json
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from rich.console import Console

from lunanexa_apps.cli import explain, invoke, key, models, requests, shell_completion, up
from lunanexa_apps.cli.request_pages import requests_page
from lunanexa_core.outcomes import Outcome
from lunanexa_ports.http_client import HttpRequest
from tests.apps.scripted_http import Reply
from tests.apps.test_cli import REMOTE, call, refuse, tools

RECEIPT: dict[str, Any] = {
    "workload": "wl_2",
    "request": "req_2",
    "tenant": "default",
    "key": "key_1",
    "alias": "tiny",
    "dialect": "chat/completions",
    "state": "Failed",
    "outcome": "engine_failed",
    "detail": "engine_cut",
    "input_tokens": 4,
    "output_tokens": 2,
    "estimated": True,
    "queue_ms": 12,
    "first_output_ms": None,
    "total_ms": 12_345,
    "attempts": [
        {"start": "start_1", "failure": "engine_error", "status": 500},
        {"start": "start_2", "failure": "engine_cut", "status": 200},
    ],
}
OPEN: dict[str, Any] = {
    "workload": "wl_3",
    "request": "req_3",
    "tenant": "default",
    "key": "key_1",
    "alias": "tiny",
    "deployment": "tiny",
    "dialect": "chat/completions",
    "stream": True,
    "priority": "Interactive",
    "state": "Queued",
    "place": 3,
    "age_ms": 250,
    "deadline_ms": 600_000,
    "body_bytes": 80,
    "reserved_tokens": 30,
}
CANDIDATE: dict[str, Any] = {
    "assignment": "asg_1",
    "node": "spark-1",
    "start": "start_1",
    "refused": "it failed on this request before",
    "slots": 4,
    "slots_held": 1,
    "free_slots": 3,
    "free_share": 750,
    "running": None,
    "reading_age_ms": None,
    "tie_break": 1 << 52,
}
DECISION: dict[str, Any] = {
    "workload": "wl_2",
    "deployment": "tiny",
    "wall_ms": 1,
    "queued_ms": 12,
    "waiting": 2,
    "band": 1,
    "chosen": "start_2",
    "candidates": [
        CANDIDATE,
        {**CANDIDATE, "start": "start_2", "node": "spark-2", "refused": None, "running": 1, "reading_age_ms": 900},
        {**CANDIDATE, "start": "start_3", "node": "spark-3", "refused": None, "free_slots": 0},
    ],
}
MODELS: dict[str, Any] = {
    "object": "list",
    "data": [
        {"id": "tiny", "meta": {"state": "ready", "context_length": 32_768, "capabilities": ["chat/completions"]}},
        {"id": "sea", "meta": {"state": "ready", "context_length": None, "capabilities": ["embeddings"]}},
    ],
}


def serve(request: HttpRequest) -> Reply:
    assert dict(request.headers)[b"authorization"] == b"Bearer token"
    documents: dict[str, Any] = {
        "/v1/models": MODELS,
        "/admin/v1/keys": {"data": [{"key": "key_1"}, {"key": "key_2"}, {"key": "other"}]},
        "/admin/v1/requests?limit=20": {"open": [OPEN], "ended": [RECEIPT]},
        "/admin/v1/requests?limit=50": {"open": [OPEN], "ended": [RECEIPT]},
        "/admin/v1/requests?limit=1": {"open": [], "ended": []},
        "/admin/v1/requests/wl_2": {"open": None, "ended": RECEIPT, "decision": DECISION},
        "/admin/v1/requests/wl_3": {"open": OPEN, "ended": None, "decision": None},
    }
    return Reply(200, [json.dumps(documents[request.target]).encode()])


def page(command: click.Command, *arguments: str) -> str:
    result = call(command, *arguments, server=serve, environment=REMOTE)
    assert result.exit_code == 0
    return result.stdout


def test_models() -> None:
    shown = page(models.command)
    assert "32,768 tokens" in shown
    assert "embeddings" in shown
    shown_json = json.loads(page(models.command, "-o", "json"))
    assert shown_json == {"data": [{"owned_by": None, **card} for card in MODELS["data"]]}


def test_no_model_says_where_to_look() -> None:
    empty = json.dumps({"object": "list", "data": []}).encode()
    result = call(models.command, server=lambda _: Reply(200, [empty]), environment=REMOTE)
    assert "no model can be called now at http://box:8400" in result.stdout


def test_requests() -> None:
    shown = page(requests.command)
    for part in ("wl_3", "Queued 3 before it", "Interactive", "250 ms", "10 min", "wl_2", "engine_failed engine_cut"):
        assert part in shown
    assert "nothing is in progress" in page(requests.command, "--limit", "1")
    assert json.loads(page(requests.command, "-o", "json"))["open"] == [OPEN]


def test_explain_an_end() -> None:
    shown = page(explain.command, "wl_2")
    for part in (
        "Failed engine_failed engine_cut",
        "4 tokens in, 2 out (estimated)",
        "attempt 1 on start_1, status 500: engine_error",
        "Decided after 12 ms in the queue, in band 1, with 2 waiting.",
        "it failed on this request before",
        "chosen",
        "outranked",
        "3 of 4",
        "900 ms before",
        "0.5000",
    ):
        assert part in shown, part
    assert json.loads(page(explain.command, "wl_2", "-o", "json"))["decision"] == DECISION


def test_explain_what_waits() -> None:
    shown = page(explain.command, "wl_3")
    assert "In progress for 250 ms of 10 min, 3 before it in the queue." in shown
    assert "No replica has been chosen yet." in shown


def test_what_is_not_there() -> None:
    result = call(explain.command, "a b", environment=REMOTE)
    assert result.exit_code == 2
    assert "lunanexa requests shows them" in result.stderr
    refused = refuse(Outcome.NOT_FOUND, "There is no request 'wl_9'.")
    result = call(explain.command, "wl_9", server=refused, environment=REMOTE)
    assert result.exit_code == 66
    assert "There is no request 'wl_9'." in result.stderr
    assert "next:  see what there is: lunanexa requests" in result.stderr


@pytest.mark.parametrize("width", [80, 100, 140])
def test_names_are_whole_on_every_screen(width: int) -> None:
    name = "wl_01m8mk3616tmxqpgs3kj3vw6s7"
    screen = io.StringIO()
    document = {
        "open": [{**OPEN, "workload": name, "alias": "lunanexa-reference"}],
        "ended": [{**RECEIPT, "workload": name, "alias": "lunanexa-reference"}],
    }
    Console(width=width, file=screen).print(requests_page(document))
    shown = screen.getvalue()
    assert shown.count(name) == 2
    assert "12.3 s" in shown
    assert "4 in, 2 out" in shown
    assert ("FIRST OUTPUT" in shown) == (width > 112)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = call(shell_completion.command, shell)
    assert result.exit_code == 0
    assert "_LUNANEXA_COMPLETE" in result.stdout


@pytest.mark.parametrize(
    ("command", "arguments", "incomplete", "offered"),
    [
        (explain.command, [], "wl_", ["wl_3", "wl_2"]),
        (invoke.command, [], "t", ["tiny"]),
        (key.command, ["show"], "key", ["key_1", "key_2"]),
        (key.command, ["revoke"], "o", ["other"]),
    ],
)
def test_names_are_completed(
    command: click.Command, arguments: list[str], incomplete: str, offered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in REMOTE.items():
        monkeypatch.setenv(name, value)
    completion = ShellComplete(command, {"obj": tools(serve)}, "lunanexa", "_LUNANEXA_COMPLETE")
    assert [item.value for item in completion.get_completions(arguments, incomplete)] == offered


@pytest.mark.parametrize(
    ("command", "arguments", "offered"),
    [
        (up.command, ["--model"], "file"),
        (up.command, ["--ready-file"], "file"),
        (explain.command, ["--data-dir"], "dir"),
        (explain.command, ["--config"], "file"),
        (up.command, ["--alias"], None),
    ],
)
def test_the_shell_completes_files_and_folders(
    command: click.Command, arguments: list[str], offered: str | None
) -> None:
    completion = ShellComplete(command, {}, "lunanexa", "_LUNANEXA_COMPLETE")
    kinds = [item.type for item in completion.get_completions(arguments, "a")]
    assert kinds == ([] if offered is None else [offered])


def test_a_shell_hears_of_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in REMOTE.items():
        monkeypatch.setenv(name, value)
    refused = tools(refuse(Outcome.INVALID_API_KEY, "no"))
    completion = ShellComplete(explain.command, {"obj": refused}, "lunanexa", "_LUNANEXA_COMPLETE")
    assert completion.get_completions([], "") == []
    assert capsys.readouterr() == ("", "")
