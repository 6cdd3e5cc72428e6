"""Commands as a user calls them, over a scripted controller."""

import io
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click
import pytest
import trio
from click.testing import CliRunner, Result
from rich.console import Console
from trio.testing import MockClock

from lunanexa_adapters.crypto.fleet_keys import LocalFleetKeys
from lunanexa_adapters.crypto.signing import Ed25519Verifier
from lunanexa_adapters.files.private_files import LocalPrivateFiles
from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_adapters.sqlite.journal_reader import open_sqlite_journal_reader
from lunanexa_adapters.system.clock import SystemClock
from lunanexa_apps.cli import check_config, invoke, status, up, version
from lunanexa_apps.cli.completion import Measures
from lunanexa_apps.cli.main import program
from lunanexa_apps.cli.status_page import status_page
from lunanexa_apps.cli.tools import BackupTools, Tools, printable
from lunanexa_apps.cli.up_screen import (
    Announcer,
    ForgivingScreen,
    PlainScreen,
    TerminalScreen,
    announcement_document,
    curl,
    panel,
    rows,
)
from lunanexa_apps.installation import API_KEY, UP_LOCK, prepare_installation, write_address
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_apps.up.screen import Announcement, Failure
from lunanexa_apps.up.supervisor import ChildEnded
from lunanexa_core.outcomes import Outcome, Refusal, error_document
from lunanexa_ports.children import Children
from lunanexa_ports.http_client import HttpBroken, HttpRequest, HttpResponse, HttpUnreachable
from lunanexa_ports.private_files import LockHeld, PrivateFiles
from lunanexa_ports.signing import Signer
from tests.apps.scripted_http import Reply, ScriptedHttp
from tests.apps.test_installation import CountedIds
from tests.recorded import recorded

T = TypeVar("T")

STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "cluster": "cluster_01",
    "epoch": 3,
    "sequence": 42,
    "draining": False,
    "nodes": [
        {
            "node": "local",
            "state": "alive",
            "boot": "b",
            "heartbeat_age_ms": 412,
            "available_mib": 20_480,
            "total_mib": 32_768,
            "agent_version": "0.1.0",
        }
    ],
    "deployments": [
        {
            "deployment": "default",
            "alias": "lunanexa-reference",
            "generation": 1,
            "driver": "reference",
            "ready": True,
            "queue": {"waiting": 1, "running": 4, "limit": 256},
            "replicas": [
                {
                    "assignment": "asg_1",
                    "node": "local",
                    "start": "start_1",
                    "state": "ready",
                    "identity": "proven",
                    "pid": 4711,
                    "slots": 4,
                    "restarts": 0,
                    "exit": None,
                    "running": 4,
                    "waiting": None,
                }
            ],
        },
        {
            "deployment": "broken",
            "alias": "gemma",
            "generation": 2,
            "driver": "llama_cpp",
            "ready": False,
            "queue": {"waiting": 0, "running": 0, "limit": 256},
            "replicas": [
                {
                    "assignment": "asg_2",
                    "node": "local",
                    "state": "failed",
                    "identity": "none",
                    "pid": None,
                    "slots": 0,
                    "restarts": 5,
                    "exit": {"kind": "exited", "code": 1, "signal": None, "last_lines": ["no such \x1b[31mtensor"]},
                }
            ],
        },
    ],
    "usage": {
        "requests": 3,
        "input_tokens": 12,
        "output_tokens": 90,
        "succeeded": 2,
        "failed": 0,
        "cancelled": 1,
    },
    "receipts": [
        {
            "workload": "wl_2",
            "alias": "lunanexa-reference",
            "state": "Cancelled",
            "outcome": "cancelled_by_caller",
            "detail": None,
            "input_tokens": 4,
            "output_tokens": 2,
            "queue_ms": 0,
            "first_output_ms": None,
            "total_ms": 12_345,
        }
    ],
}


def no_database(_: str) -> AbstractAsyncContextManager[Any]:
    raise AssertionError("not used")


def local_signers(folder: str) -> Sequence[Signer]:
    place = Path(folder)
    return tuple(LocalFleetKeys(place, SystemClock()).signers().values()) if any(place.glob("signing*.pem")) else ()


def local_backup_tools() -> BackupTools:
    return BackupTools(
        clock=SystemClock(),
        verifier=Ed25519Verifier(),
        read_signers=local_signers,
        read_file=lambda path: open_sqlite_journal_reader(Path(path), live=True),
        read_database=no_database,
        fill_file=lambda path: open_sqlite_journal(Path(path)),
        fill_database=no_database,
    )


def tools(server: Callable[[HttpRequest], Reply]) -> Tools:
    def run(function: Callable[[], Awaitable[T]]) -> T:
        return trio.run(function)

    def no_children() -> AbstractContextManager[Children]:
        raise AssertionError("not used")

    def make_files(folder: str) -> PrivateFiles:
        return LocalPrivateFiles(Path(folder))

    return Tools(
        run=run,
        make_http=lambda: ScriptedHttp(server),
        make_ids=CountedIds,
        make_children=no_children,
        make_files=make_files,
        open_journal=lambda path: open_sqlite_journal_reader(Path(path)),
        make_backup_tools=local_backup_tools,
    )


def call(
    command: click.Command,
    *arguments: str,
    server: Callable[[HttpRequest], Reply] | None = None,
    stdin: str | bytes | None = None,
    environment: dict[str, str] | None = None,
) -> Result:
    def nobody(_: HttpRequest) -> Reply:
        raise HttpUnreachable("refused")

    kept: dict[str, str | None] = {
        "HOME": "/nowhere",
        "XDG_DATA_HOME": "",
        "XDG_CONFIG_HOME": "",
        "LUNANEXA_CONFIG": "",
        "COLUMNS": None,
    }
    runner = CliRunner(env=kept | (environment or {}))
    return runner.invoke(command, arguments, obj=tools(server or nobody), input=stdin, catch_exceptions=False)


REMOTE = {"LUNANEXA_URL": "http://box:8400/v1", "LUNANEXA_TOKEN": "token"}


def serve_status(request: HttpRequest) -> Reply:
    assert (request.host, request.port, request.target) == ("box", 8400, "/admin/v1/status")
    assert dict(request.headers)[b"authorization"] == b"Bearer token"
    return Reply(200, [json.dumps(STATUS).encode()])


def refuse(outcome: Outcome, message: str) -> Callable[[HttpRequest], Reply]:
    refusal = Refusal(outcome=outcome, message=message)
    body = json.dumps(error_document(refusal, "req_1")).encode()
    return lambda _: Reply(refusal.row.http_status, [body])


def test_status_as_a_page() -> None:
    result = call(status.command, server=serve_status, environment=REMOTE)
    assert result.exit_code == 0
    page = result.stdout
    for part in (
        "http://box:8400",
        "local",
        "alive",
        "412 ms ago",
        "20.0 of 32.0 GiB",
        "lunanexa-reference",
        "1 of 256",
    ):
        assert part in page
    assert "gemma: its engine exited with status 1" in page
    assert "| no such [31mtensor" in page
    assert "3 requests (2 succeeded, 0 failed, 1 cancelled); 12 tokens in, 90 out" in page
    assert "Cancelled cancelled_by_caller" in page
    assert "12.3 s" in page
    assert "\x1b" not in page


def test_status_as_json() -> None:
    result = call(status.command, "-o", "json", server=serve_status, environment=REMOTE)
    assert json.loads(result.stdout) == STATUS


def test_status_of_an_adopted_server_that_is_silent() -> None:
    for ended in (None, {"kind": "unhealthy"}, {"kind": "wrong_identity"}):
        silent = {"node": "local", "state": "starting", "exit": ended, "not_routable": "not ready"}
        entry = {"alias": "sea", "driver": "ollama", "adopted": True, "ready": False, "replicas": [silent]}
        page = page_of(entry)
        assert "sea: the server that runs it does not answer" in page
        assert "its engine" not in page
        assert "ollama, adopted" in page


def page_of(deployment: dict[str, object]) -> str:
    body = json.dumps({"deployments": [deployment]}).encode()
    return call(status.command, server=lambda _: Reply(200, [body]), environment=REMOTE).stdout


@pytest.mark.parametrize(
    ("replica", "words"),
    [
        ({"state": "awaiting_memory", "exit": None}, "sea: waits until its node has the memory to start it"),
        (
            {"state": "failed", "exit": {"kind": "no_memory", "detail": "needs 9 MiB, this machine has 8 MiB in all"}},
            "sea: its engine was not started for want of memory: it needs 9 MiB, this machine has 8 MiB in all",
        ),
    ],
)
def test_status_says_what_memory_a_start_lacks(replica: dict[str, object], words: str) -> None:
    entry = {"deployment": "d", "alias": "sea", "driver": "llama_cpp", "ready": False, "replicas": [replica]}
    body = json.dumps({"deployments": [entry]}).encode()
    result = call(status.command, server=lambda _: Reply(200, [body]), environment=REMOTE)
    assert words in result.stdout.replace("\n", " ")


def test_status_says_what_a_node_does_not_run() -> None:
    words = {"asg_1": "policy_program", "asg_2": "policy_replicas"}
    told = [{"assignment": name, "refusal": word} for name, word in words.items()]
    body = json.dumps({"nodes": [{"node": "local", "refused": told}]}).encode()
    result = call(status.command, server=lambda _: Reply(200, [body]), environment=REMOTE)
    assert "local does not run asg_1 (policy_program)\n" in result.stdout
    assert "local does not run asg_2 (policy_replicas: no room by its owner's rule)\n" in result.stdout


@pytest.mark.parametrize(("width", "whole"), [(120, True), (80, False), (60, True), (40, True)])
def test_no_word_of_a_page_is_broken(width: int, whole: bool) -> None:
    """A screen of the usual width has a line for each receipt, and cuts two of its words; on a narrow one each row
    stands by itself."""
    console = Console(width=width, file=io.StringIO())
    workload, alias = "wl_" + 26 * "0", "a-model-with-a-long-name"
    receipts = [
        {**receipt, "workload": workload, "alias": alias, "state": "Succeeded", "outcome": None}
        for receipt in STATUS["receipts"]
    ]
    with console.capture() as page:
        console.print(status_page({**STATUS, "receipts": receipts}, "http://127.0.0.1:8400"))
    assert max(map(len, page.get().splitlines())) <= width
    _, found, ended = " ".join(page.get().split()).partition(workload)
    assert found
    assert all(part in ended for part in ("Succeeded", "4 in, 2 out"))
    assert (alias in ended, "…" in ended) == (whole, not whole)


@pytest.mark.parametrize(("typed", "meant"), [("statsu", "'status'"), ("journel", "'journal'"), ("xyz", None)])
def test_a_misspelt_command_has_the_nearest_one_told(typed: str, meant: str | None) -> None:
    result = CliRunner().invoke(program, [typed])
    assert result.exit_code == 2
    assert f"No such command '{typed}'" in result.stderr
    assert ("Did you mean" in result.stderr) is (meant is not None)
    assert meant is None or meant in result.stderr


def test_what_named_the_controller_is_what_is_to_be_checked(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("another")
    named = ("--url", "http://box:8400", "--token-file", str(token))
    assert "check --url" in call(status.command, *named).stderr
    refused = call(status.command, *named, server=refuse(Outcome.INVALID_API_KEY, "no"))
    assert "put the operator token there: --token-file" in refused.stderr
    token.write_text("no ☃")
    assert "check --token-file" in call(status.command, *named).stderr


def test_a_store_that_is_away_is_told_first() -> None:
    body = json.dumps({**STATUS, "store_ok": False}).encode()
    result = call(status.command, server=lambda _: Reply(200, [body]), environment=REMOTE)
    assert "its store can't be used" in result.stdout.partition("NODE")[0]
    assert "store" not in call(status.command, server=serve_status, environment=REMOTE).stdout


def test_status_of_something_that_says_little() -> None:
    result = call(status.command, server=lambda _: Reply(200, [b"{}"]), environment=REMOTE)
    assert result.exit_code == 0
    assert "no node has enrolled yet" in result.stdout
    assert "nothing is deployed" in result.stdout


def test_status_uses_the_installation_of_this_machine(tmp_path: Path) -> None:
    files = LocalPrivateFiles(tmp_path)
    installation = prepare_installation(files, CountedIds())
    write_address(files, HostPort("127.0.0.1", 8444))

    def server(request: HttpRequest) -> Reply:
        assert (request.host, request.port) == ("127.0.0.1", 8444)
        token = dict(request.headers)[b"authorization"].decode()
        assert token == f"Bearer {installation.operator_token}"
        return Reply(200, [b"{}"])

    assert call(status.command, "--data-dir", str(tmp_path), server=server, environment=REMOTE).exit_code == 0
    nobody = call(status.command, "--data-dir", str(tmp_path))
    assert nobody.exit_code == 69
    assert "no controller answers at http://127.0.0.1:8444" in nobody.stderr
    assert f"lunanexa up --data-dir {tmp_path}" in nobody.stderr
    unknown = call(invoke.command, "--data-dir", str(tmp_path), "x", "Hi", server=refuse(Outcome.MODEL_NOT_FOUND, "no"))
    assert f"lunanexa models --data-dir {tmp_path}" in unknown.stderr


def test_no_installation_and_no_url() -> None:
    result = call(status.command)
    assert result.exit_code == 69
    assert "no installation in /nowhere/.local/share/lunanexa" in result.stderr
    assert "lunanexa up" in result.stderr
    assert result.stdout == ""


def test_a_refused_token_says_which_one_is_needed() -> None:
    result = call(status.command, server=refuse(Outcome.INVALID_API_KEY, "unknown key"), environment=REMOTE)
    assert result.exit_code == 77
    assert "error: unknown key" in result.stderr
    assert "set LUNANEXA_TOKEN to the operator token" in result.stderr


@pytest.mark.parametrize("reply", [Reply(200, [b"<html>"]), Reply(200, [b"[]"]), Reply(302), Reply(404, [b"<html>"])])
def test_what_answers_is_no_controller(reply: Reply) -> None:
    result = call(status.command, server=lambda _: reply, environment=REMOTE)
    assert result.exit_code == 69
    assert "http://box:8400: what answers is not a controller's" in result.stderr
    assert "check LUNANEXA_URL" in result.stderr


def test_a_token_that_no_header_can_hold() -> None:
    result = call(status.command, environment={**REMOTE, "LUNANEXA_TOKEN": "schlüssel"})
    assert result.exit_code == 78
    assert "must be printable ASCII" in result.stderr
    assert "schl" not in result.stderr


class SilentHttp(ScriptedHttp):
    @asynccontextmanager
    async def _exchange(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        await trio.Event().wait()
        yield Reply(200)


def test_a_controller_that_is_silent_is_not_waited_for_long() -> None:
    def run(function: Callable[[], Awaitable[T]]) -> T:
        return trio.run(function, clock=MockClock(autojump_threshold=0))

    used = attrs.evolve(tools(lambda _: Reply(200)), run=run, make_http=lambda: SilentHttp(lambda _: Reply(200)))
    result = CliRunner(env=REMOTE | {"HOME": "/nowhere"}).invoke(status.command, obj=used)
    assert result.exit_code == 69
    assert "http://box:8400: /admin/v1/status: no end within 15000 ms" in result.stderr


def chunk(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n'
STOP = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
HEAD = ((b"x-lunanexa-queue-ms", b"17"), (b"x-request-id", b"req_1"), (b"x-lunanexa-workload-id", b"wl_1"))


class Model:
    """Serves one model that says these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces
        self.asked: dict[str, Any] = {}

    def __call__(self, request: HttpRequest) -> Reply:
        match (request.method, request.target):
            case ("GET", "/v1/models"):
                return Reply(200, [b'{"data": [{"id": "moon"}, {"id": "sun"}]}'])
            case ("POST", "/v1/chat/completions"):
                self.asked = json.loads(request.body)
                return Reply(200, self.pieces, HEAD)
            case other:
                raise AssertionError(other)


def test_invoke_streams_the_answer_of_the_first_model() -> None:
    model = Model(b": ping\n\n" + chunk("Hel"), chunk("lo")[:9], chunk("lo")[9:], STOP + USAGE + DONE)
    result = call(invoke.command, "Say hello", server=model, environment=REMOTE)
    assert result.exit_code == 0
    assert result.stdout == "Hello\n"
    assert "first token" in result.stderr
    assert "queued 17 ms, 3 tokens in, 2 out" in result.stderr
    assert model.asked == {
        "model": "moon",
        "messages": [{"role": "user", "content": "Say hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_invoke_as_json_with_options_and_standard_input() -> None:
    model = Model(chunk("x"), STOP + USAGE + DONE)
    arguments = ("sun", "-", "--system", "Be brief", "--max-tokens", "5", "--temperature", "0", "-o", "json")
    result = call(invoke.command, *arguments, server=model, stdin="from a pipe", environment=REMOTE)
    document = json.loads(result.stdout)
    assert (document["model"], document["content"], document["finish_reason"]) == ("sun", "x", "stop")
    assert (document["queue_ms"], document["workload_id"], document["request_id"]) == (17, "wl_1", "req_1")
    assert document["usage"]["completion_tokens"] == 2
    assert document["ttft_ms"] >= 0
    assert model.asked["messages"] == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "from a pipe"},
    ]
    assert (model.asked["max_tokens"], model.asked["temperature"]) == (5, 0)


@pytest.mark.parametrize(
    ("outcome", "exit_code", "hint"),
    [
        (Outcome.MODEL_NOT_FOUND, 66, "lunanexa models"),
        (Outcome.QUEUE_FULL, 75, ""),
        (Outcome.DRAINING, 75, "lunanexa up"),
        (Outcome.STORE_UNAVAILABLE, 75, "its disk has room"),
        (Outcome.INVALID_REQUEST, 65, ""),
        (Outcome.INVALID_API_KEY, 77, "set LUNANEXA_TOKEN to an API key"),
    ],
)
def test_invoke_ends_by_the_outcome_table(outcome: Outcome, exit_code: int, hint: str) -> None:
    result = call(invoke.command, "sun", "Hi", server=refuse(outcome, "because"), environment=REMOTE)
    assert result.exit_code == exit_code
    assert "error: because" in result.stderr
    assert hint in result.stderr


def test_who_comes_too_often_is_told_when_to_come_again() -> None:
    def limited(request: HttpRequest) -> Reply:
        return attrs.evolve(refuse(Outcome.RATE_LIMITED, "too often")(request), head=((b"retry-after", b"42"),))

    result = call(invoke.command, "sun", "Hi", server=limited, environment=REMOTE)
    assert (result.exit_code, result.stderr) == (75, "error: too often\nnext:  try again in 42 s\n")


def test_invoke_tells_of_an_error_within_the_stream() -> None:
    model = Model(chunk("Hal"), b'data: {"error":{"code":"engine_failed","message":"the engine cut"}}\n\n')
    result = call(invoke.command, "sun", "Hi", server=model, environment=REMOTE)
    assert result.exit_code == 69
    assert result.stdout == "Hal\n"
    assert "the answer was cut: the engine cut" in result.stderr


def test_invoke_tells_of_a_stream_without_an_end() -> None:
    result = call(invoke.command, "sun", "Hi", server=Model(chunk("Hal")), environment=REMOTE)
    assert result.exit_code == 69
    assert "ended before its end" in result.stderr


def test_invoke_when_the_connection_breaks() -> None:
    def broken(_: HttpRequest) -> Reply:
        raise HttpBroken("cut in the middle", head_seen=True)

    result = call(invoke.command, "sun", "Hi", server=broken, environment=REMOTE)
    assert result.exit_code == 69
    assert "cut in the middle" in result.stderr


def test_invoke_without_a_served_model() -> None:
    result = call(invoke.command, "Hi", server=lambda _: Reply(200, [b'{"data": []}']), environment=REMOTE)
    assert result.exit_code == 75
    assert "no model is served now" in result.stderr


def test_invoke_with_a_token_that_no_header_can_hold() -> None:
    result = call(invoke.command, "sun", "Hi", environment={**REMOTE, "LUNANEXA_TOKEN": "schlüssel"})
    assert result.exit_code == 78
    assert "api_key: must be printable ASCII" in result.stderr
    assert "schl" not in result.stderr


def test_invoke_when_what_answers_is_no_controller() -> None:
    result = call(invoke.command, "Hi", server=lambda _: Reply(200, [b"<html>"]), environment=REMOTE)
    assert result.exit_code == 69
    assert "the answer is no JSON" in result.stderr


def test_invoke_wants_one_prompt() -> None:
    assert call(invoke.command, "a", "b", "c", environment=REMOTE).exit_code == 2
    assert call(invoke.command, stdin="  \n", environment=REMOTE).exit_code == 2


def test_invoke_wants_text() -> None:
    piped = call(invoke.command, stdin=b"\xb3\x00", environment=REMOTE)
    assert (piped.exit_code, "standard input is not UTF-8 text" in piped.stderr) == (2, True)
    given = call(invoke.command, "a\udcb3", environment=REMOTE)
    assert (given.exit_code, "an argument is not UTF-8 text" in given.stderr) == (2, True)


def test_check_config_shows_values_and_sources(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('alias = "mine"\ntoken = "env:MINE"\n')
    environment = {"MINE": "lnx_planted_secret", "LUNANEXA_LISTEN": "127.0.0.1:9999"}
    page = call(check_config.command, "--config", str(file), environment=environment)
    assert page.exit_code == 0
    assert "lnx_planted" not in page.output
    assert "(hidden)" in page.stdout
    document = json.loads(
        call(check_config.command, "--config", str(file), "-o", "json", environment=environment).stdout
    )
    assert document["alias"] == {"value": "mine", "source": f"{file}: alias", "kind": "file"}
    assert document["listen"] == {"value": "127.0.0.1:9999", "source": "LUNANEXA_LISTEN", "kind": "environment"}
    assert document["queue_wait_ms"]["kind"] == "default"
    assert document["token"]["value"] == "(hidden)"


def test_check_config_shows_lists_as_a_variable_has_them() -> None:
    environment = {"LUNANEXA_ENGINE_ARGUMENT": "-ngl 99 'two words'"}
    shown = json.loads(call(check_config.command, "-o", "json", environment=environment).stdout)
    assert shown["engine_argument"]["value"] == "-ngl 99 'two words'"
    assert shown["adopt"]["value"] is None


def test_check_config_tells_every_problem(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("listens = 1\nslots = 0\n")
    result = call(check_config.command, "--config", str(file))
    assert result.exit_code == 78
    assert "unknown key listens; did you mean listen?" in result.stderr
    assert "slots (from" in result.stderr


def test_version() -> None:
    assert call(version.command).stdout.startswith("lunanexa 0.")
    assert set(json.loads(call(version.command, "-o", "json").stdout)) == {"lunanexa", "python"}


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("--engine", "vulcan"), 64, "unknown engine vulcan"),
        (("--model", "/nowhere/x.gguf"), 64, "/nowhere/x.gguf: no such file"),
        (("--adopt", "http://127.0.0.1:1"), 64, "no OpenAI-compatible server answers"),
        (("--slots", "none"), 78, "slots (from --slots): expected an integer"),
        (("--listen", "192.0.2.1:1"), 69, "not an address of this machine"),
    ],
)
def test_up_refuses_before_anything_starts(
    tmp_path: Path, arguments: tuple[str, ...], exit_code: int, message: str
) -> None:
    result = call(up.command, "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", *arguments)
    assert (result.exit_code, message in result.stderr) == (exit_code, True), result.stderr
    assert "next:" in result.stderr
    assert "check-config" not in result.stderr  # it takes no such flag, and would tell nothing
    assert not (tmp_path / "data" / "controller").exists()


OLLAMA = recorded("ollama")


def test_up_offers_a_server_that_it_finds_and_does_not_touch_it(tmp_path: Path) -> None:
    def server(request: HttpRequest) -> Reply:
        if request.port != 11434:
            raise HttpUnreachable("refused")
        body = OLLAMA.get(request.target)
        return Reply(404) if body is None else Reply(200, [body])

    options = ("--data-dir", str(tmp_path), "--listen", "127.0.0.1:0")
    result = call(up.command, *options, "--engine-binary", "/nowhere/engine", server=server)
    assert "found Ollama 0.33.0 at http://127.0.0.1:11434; serve its models with --adopt" in result.stderr


def test_up_adopts_no_local_server_where_there_is_none(tmp_path: Path) -> None:
    result = call(up.command, "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0", "--adopt", "local")
    assert result.exit_code == 64
    assert "no server that lists a model answers on the usual ports" in result.stderr


def test_up_sends_a_key_from_a_file_and_shows_it_to_nobody(tmp_path: Path) -> None:
    keys = tmp_path / "key"
    keys.write_text("sesame\n")
    seen: list[bytes | None] = []

    def server(request: HttpRequest) -> Reply:
        seen.append(dict(request.headers).get(b"authorization"))
        return Reply(401, [b"{}"])

    options = ("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--adopt", "http://127.0.0.1:1")
    result = call(up.command, *options, "--adopt-key-file", str(keys), server=server)
    assert (result.exit_code, seen) == (64, [b"Bearer sesame"])
    assert "does not accept the key" in result.stderr
    assert "sesame" not in result.output + result.stderr


def test_up_names_who_runs_the_installation(tmp_path: Path) -> None:
    lock = LocalPrivateFiles(tmp_path).lock(UP_LOCK, f"process {os.getpid()}")
    assert not isinstance(lock, LockHeld)
    with lock:
        result = call(up.command, "--data-dir", str(tmp_path))
    assert result.exit_code == 75
    assert f"is run by process {os.getpid()} already" in result.stderr


def test_up_writes_who_runs_the_installation_into_its_lock(tmp_path: Path) -> None:
    seen: list[object] = []
    files = LocalPrivateFiles(tmp_path)

    def look(_: HttpRequest) -> Reply:
        seen.append(files.lock(UP_LOCK, "somebody else"))
        raise HttpUnreachable("refused")

    adopt = ("--listen", "127.0.0.1:0", "--adopt", "http://127.0.0.1:1")
    assert call(up.command, "--data-dir", str(tmp_path), *adopt, server=look).exit_code == 64
    assert seen == [LockHeld(f"process {os.getpid()}")]
    lock = files.lock(UP_LOCK, "somebody else")
    assert not isinstance(lock, LockHeld), "the lock ends with the command"
    lock.release()


def test_up_in_a_place_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = call(up.command, "--data-dir", str(tmp_path / "file" / "data"))
    assert result.exit_code == 78
    assert str(tmp_path / "file" / "data") in result.stderr
    assert "a file is in the place of its folder" in result.stderr
    assert "choose another --data-dir" in result.stderr


def test_up_refuses_a_weak_secret_with_its_file(tmp_path: Path) -> None:
    files = LocalPrivateFiles(tmp_path)
    for secret, fault in (
        (b"short", "shorter than 32 characters"),
        (b"k\xfcy 0123456789 abcdefghijklmnopqrstuvwxyz", "not one line of printable ASCII"),
    ):
        files.replace(API_KEY, secret)
        for command in (up.command, status.command):
            result = call(
                command, "--data-dir", str(tmp_path), *(["--listen=127.0.0.1:0"] if command is up.command else [])
            )
            assert result.exit_code == 78
            assert f"{files.place(API_KEY)}: the secret is {fault}; remove the file" in result.stderr


@pytest.mark.parametrize("path", ["", "/"])
def test_a_ready_file_must_be_a_file(tmp_path: Path, path: str) -> None:
    result = call(up.command, "--data-dir", str(tmp_path), "--ready-file", path)
    assert result.exit_code == 2
    assert "--ready-file: name a file" in result.stderr


ANNOUNCEMENT = Announcement(
    base_url="http://127.0.0.1:8400/v1",
    api_key="lnx_" + "k" * 43,
    api_key_file="/home/u/.local/share/lunanexa/controller/secrets/api_key",
    operator_token_file="/home/u/.local/share/lunanexa/controller/secrets/operator_token",
    models=("lunanexa-reference",),
    engine="reference engine: a small n-gram model, no neural network",
    data_dir="/home/u/.local/share/lunanexa",
)


def test_the_curl_survives_pasting() -> None:
    words = subprocess.run(
        ["/bin/sh", "-c", f"curl() {{ for a; do printf '%s\\n' \"$a\"; done; }}\n{curl(ANNOUNCEMENT)}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert words[0] == "-sN"
    assert words[1] == "http://127.0.0.1:8400/v1/chat/completions"
    assert f"Authorization: Bearer {ANNOUNCEMENT.api_key}" in words
    assert json.loads(words[-1])["model"] == "lunanexa-reference"


def test_all_models_are_announced() -> None:
    many = attrs.evolve(ANNOUNCEMENT, models=("qwen3:0.6b", "Tiny/sea"))
    stream = io.StringIO()
    Announcer(Console(file=stream, force_terminal=True, width=200, no_color=True), as_json=False).serving(many)
    assert "qwen3:0.6b, Tiny/sea" in stream.getvalue()
    assert announcement_document(many)["models"] == ["qwen3:0.6b", "Tiny/sea"]
    assert announcement_document(many)["model"] == "qwen3:0.6b"


@pytest.mark.parametrize(("width", "framed"), [(100, True), (60, False)])
def test_what_is_to_be_copied_is_never_folded_on_a_terminal(width: int, framed: bool) -> None:
    stream = io.StringIO()
    told = attrs.evolve(ANNOUNCEMENT, api_key="lnx_" + 43 * "x")
    Announcer(Console(file=stream, force_terminal=True, width=width, no_color=True), as_json=False).serving(told)
    for line in (*curl(told).splitlines(), *(value for _, value in rows(told))):
        assert line in stream.getvalue()
    assert "LunaNexa is ready" in stream.getvalue()
    assert ("│" in stream.getvalue()) is framed


def test_a_terminal_that_forbids_colors_gets_none() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, no_color=True, width=100)
    screen = TerminalScreen(console, Announcer(console, as_json=False))
    screen.progress("starting the controller")
    screen.child_ended(ChildEnded(name="node", status=-9, in_a_row=1, pause_ms=250))
    screen.settled()
    assert "the node agent was ended by signal 9; starting it again in 0.25 s" in stream.getvalue()
    assert "\x1b[33m" not in stream.getvalue()


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    screen = PlainScreen(Announcer(Console(file=io.StringIO()), as_json=False))
    screen.progress("starting")
    screen.progress("starting")
    screen.progress("serving \x1b[2J")
    screen.failed(Failure(message="it broke", details=("last line",), hint="mend it"))
    screen.serving(ANNOUNCEMENT)
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "lunanexa: starting",
        "lunanexa: serving [2J",
        "error: it broke",
        "  | last line",
        "next:  mend it",
    ]
    assert "API key: lnx_" in captured.out
    assert curl(ANNOUNCEMENT) in captured.out


def test_a_terminal_that_went_away_ends_nothing() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    console = Console(file=Gone(), force_terminal=True)
    screen = ForgivingScreen(TerminalScreen(console, Announcer(console, as_json=False)))
    screen.note("stopping")
    screen.child_ended(ChildEnded(name="node", status=-9, in_a_row=1, pause_ms=250))
    screen.serving(ANNOUNCEMENT)
    screen.settled()


def test_the_announcement_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    Announcer(Console(file=io.StringIO()), as_json=True).serving(ANNOUNCEMENT)
    assert json.loads(capsys.readouterr().out)["base_url"] == ANNOUNCEMENT.base_url


def test_measures() -> None:
    measures = Measures(
        began=10.0, first_text=10.25, last_text=11.25, ended=11.5, queue_ms=3, input_tokens=7, output_tokens=21
    )
    assert measures.line() == "first token 250 ms, 20.0 tokens/s, queued 3 ms, 7 tokens in, 21 out, total 1500 ms"
    unknown = Measures(
        began=0, first_text=None, last_text=None, ended=1, queue_ms=None, input_tokens=None, output_tokens=None
    )
    assert unknown.line() == "total 1000 ms"


def test_printable_keeps_text_and_drops_control() -> None:
    assert printable("a\x1b]0;x\x07b\n\tü漢🙂\x9b1m") == "a]0;xb\n\tü漢🙂1m"


def test_pictures_can_be_exported() -> None:
    console = Console(record=True, width=110, file=io.StringIO())
    console.print(status_page(STATUS, "http://127.0.0.1:8400"))
    console.print(panel(ANNOUNCEMENT))
    assert console.export_svg(title="lunanexa").startswith("<svg")


@pytest.mark.parametrize("arguments", [["version"], ["check-config"], ["--help"]])
def test_output_for_which_there_is_no_room_is_told(arguments: list[str]) -> None:
    command = [sys.executable, "-c", "import lunanexa_apps.cli.main as m; m.main()", *arguments]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 74
    assert done.stderr.startswith("error: the output can't be written (No space left on device)\nnext: ")
    assert len(done.stderr.splitlines()) == 2


def test_a_terminal_that_knows_few_characters_gets_those() -> None:
    script = "import lunanexa_apps.cli.main as m; m.main()"
    command = [sys.executable, "-c", script, "check-config"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LUNANEXA_DATA_DIR": "/größe"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "/gr??e" in done.stdout


def test_help_and_version_load_nothing_heavy() -> None:
    script = (
        "import sys, lunanexa_apps.cli.main as m\n"
        "try: m.program(['--help'], prog_name='lunanexa')\n"
        "except SystemExit: pass\n"
        "heavy = {'trio', 'rich', 'cattrs', 'structlog', 'h11', 'lunanexa_client'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    for name in ("up", "status", "invoke", "check-config", "version"):
        assert name in done.stdout
