"""The small parts of ``lunanexa up``: orders, what is read of a status, what is found around, and refusals."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from lunanexa_apps.setting_kinds import HostPort
from lunanexa_apps.settings import flag_of
from lunanexa_apps.up.configuration import CommandSettings, LogFormat
from lunanexa_apps.up.engine_choice import EngineWish
from lunanexa_apps.up.orders import child_orders, reachable
from lunanexa_apps.up.plane import Plane, PlaneRefusal, refusal_of
from lunanexa_apps.up.status_view import describe_exit, describe_state, engine_pid, not_placed, replicas_of
from lunanexa_apps.up.surroundings import listed_models, look_around, usual_servers
from lunanexa_core.outcomes import TABLE, Outcome
from lunanexa_ports.errors import PortFault
from lunanexa_ports.http_client import HttpRequest, HttpUnreachable
from tests.apps.scripted_http import Reply, ScriptedHttp

SETTINGS = CommandSettings(data_dir="/data")
DOCS = Path(__file__).parents[2] / "docs"


def test_orders_tell_the_children_everything_but_secrets() -> None:
    environment = {"PATH": "/bin", "LUNANEXA_TOKEN": "planted", "LUNANEXA_LISTEN": "x"}
    controller, node = child_orders(SETTINGS, HostPort("0.0.0.0", 8400), environment, "warning")
    assert controller.argv == (
        *(sys.executable, "-m", "lunanexa_apps.controller.main"),
        *("--data-dir", "/data", "--listen", "0.0.0.0:8400"),
        *("--queue-requests-max", "256", "--queue-wait-ms", "60000", "--default-deadline-ms", "600000"),
        *("--log-format", "auto"),
    )
    assert node.argv == (
        *(sys.executable, "-m", "lunanexa_apps.node.main", "run"),
        *("--data-dir", "/data", "--controller", "http://127.0.0.1:8400", "--node", "local"),
        *("--log-format", "auto"),
    )
    for order in (controller, node):
        assert order.environment == {"PATH": "/bin", "LUNANEXA_LOG_LEVEL": "warning"}


def test_orders_pass_on_what_was_set() -> None:
    settings = attrs.evolve(SETTINGS, body_limit_bytes=2048, log_format=LogFormat.JSON)
    controller, node = child_orders(settings, HostPort("127.0.0.1", 1), {}, "debug")
    assert controller.argv[-5:] == ("--body-limit-bytes", "2048", "--log-format", "json", "-v")
    assert node.argv[-3:] == ("--log-format", "json", "-v")


@pytest.mark.parametrize(
    ("listen", "address"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("127.0.0.1", "127.0.0.1"), ("10.0.0.1", "10.0.0.1")],
)
def test_what_reaches_a_listener(listen: str, address: str) -> None:
    assert reachable(HostPort(listen, 7)) == HostPort(address, 7)


def status_with(**replica: Any) -> dict[str, Any]:
    full = {"node": "local", "generation": 2, "state": "starting", "pid": None, "restarts": 0, "exit": None} | replica
    return {
        "nodes": [{"node": "local", "heartbeat_age_ms": 5}],
        "deployments": [{"deployment": "other"}, {"deployment": "default", "generation": 2, "replicas": [full]}],
    }


def test_reading_a_status() -> None:
    (replica,) = replicas_of(status_with(pid=7, restarts=2), "default")
    assert (replica.state, replica.pid, replica.restarts, replica.current) == ("starting", 7, 2, True)
    assert describe_state((replica,)) == "engine starting, restart 2"
    (old,) = replicas_of(status_with(generation=1), "default")
    assert not old.current
    assert replicas_of({"deployments": "odd"}, "default") == ()
    assert replicas_of(None, "default") == ()
    assert describe_state(()) == "waiting for a node"


def test_a_crash_is_named_while_the_engine_rests() -> None:
    ended = {"kind": "signalled", "signal": 9, "code": None, "last_lines": ["x"]}
    replicas = replicas_of(status_with(state="backoff", exit=ended, restarts=1), "default")
    assert describe_state(replicas) == "engine backoff, restart 1 (engine was ended by signal 9)"


def test_the_engine_that_serves_counts() -> None:
    status = status_with()
    status["deployments"][1]["replicas"] += [{"state": "ready", "pid": 5}, {"state": "ready", "pid": 6}]
    assert engine_pid(replicas_of(status, "default")) == 5
    assert engine_pid(()) is None


def test_why_there_is_no_place() -> None:
    entry = {"deployment": "default", "not_placed": {"local": ["lost", "no_memory"], "other": ["drained"]}}
    assert not_placed({"deployments": [entry]}, "default") == "local: lost, no_memory; other: drained"
    assert not_placed({"deployments": [{"deployment": "default", "not_placed": {"local": []}}]}, "default") is None


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"kind": "exited", "code": 3}, "exited with status 3"),
        ({"kind": "signalled", "signal": 11}, "was ended by signal 11"),
        ({"kind": "spawn_failed"}, "could not be started"),
        ({"kind": "start_timeout"}, "was not ready in time"),
        ({"kind": "wrong_identity"}, "is not the process that answers at its address"),
        ({"kind": "new_kind"}, "ended: new_kind"),
        ({}, None),
        (None, None),
    ],
)
def test_exits_in_words(document: object, words: str | None) -> None:
    assert describe_exit(document) == words


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_refusal_ends_as_the_outcome_table_says(outcome: Outcome) -> None:
    refusal = refusal_of(400, {"error": {"code": outcome.value, "message": "m", "param": "engine.slots"}})
    assert refusal.exit_code == TABLE[outcome].exit_code
    assert refusal.text == "engine.slots: m"


def test_refusals_of_strangers() -> None:
    assert refusal_of(502, None) == PlaneRefusal(status=502, code="", message="HTTP status 502")
    assert refusal_of(502, {"error": {"code": "brand_new", "message": 7}}).exit_code == 69
    assert refusal_of(400, {"error": {"code": "context_length_exceeded", "message": "too long"}}).exit_code == 65


async def test_a_plane_asks_with_its_token_and_tells_answers_apart() -> None:
    replies = iter([Reply(200, [b'{"a":', b"1}"]), Reply(404, [b"{}"]), Reply(200, [b"<html>"]), Reply(302, [])])
    http = ScriptedHttp(lambda _: next(replies))
    plane = Plane(http=http, host="h", port=1, token="t")
    assert await plane.ask("PUT", "/x", {"b": "ü"}) == {"a": 1}
    assert isinstance(await plane.ask("GET", "/x"), PlaneRefusal)
    for _ in range(2):
        with pytest.raises(PortFault, match="not a controller's"):
            await plane.ask("GET", "/x")
    first = http.requests[0]
    assert (first.method, first.body) == ("PUT", '{"b": "ü"}'.encode())
    assert dict(first.headers)[b"authorization"] == b"Bearer t"
    assert "Bearer" not in repr(plane)


@pytest.mark.parametrize(
    ("body", "models"),
    [
        (b'{"object":"list","data":[{"id":"a"},{"id":"b"}]}', ("a", "b")),
        (b'{"data":[]}', ()),
        (b'{"data":[{"id":7},null,{}]}', ()),
        (b'{"data":{}}', None),
        (b"[]", None),
        (b"<html>", None),
    ],
)
async def test_models_that_a_server_lists(body: bytes, models: tuple[str, ...] | None) -> None:
    http = ScriptedHttp(lambda _: Reply(200, [body]))
    assert await listed_models("http://127.0.0.1:8000", http, 1_000) == models


async def test_only_servers_that_list_a_model_are_offered() -> None:
    def server(request: HttpRequest) -> Reply:
        match request.port:
            case 11434:
                return Reply(200, [b'{"data":[{"id":"llama3"}]}'])
            case 8000:
                raise HttpUnreachable("refused")
            case _:
                return Reply(404, [b"not here"])

    http = ScriptedHttp(server)
    with trio.fail_after(30):
        assert await usual_servers(http) == ("http://127.0.0.1:11434",)
    assert sorted(request.port for request in http.requests) == [8000, 8080, 11434]


async def test_looking_around(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\n")
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF" + bytes(20))
    http = ScriptedHttp(lambda _: Reply(200, [b'{"data":[{"id":"a"}]}']))
    wish = EngineWish(model=str(model), binary=str(program))
    found = await look_around(wish, {"PATH": str(tmp_path)}, http)
    assert (found.llama_server, found.binary_runs, found.model_head) == (None, False, b"GGUF")
    program.chmod(0o755)
    found = await look_around(wish, {"PATH": str(tmp_path)}, http)
    assert (found.llama_server, found.binary_runs) == (str(program), True)
    found = await look_around(EngineWish(adopt="http://h:1"), {}, http)
    assert found.adopted_models == ("a",)
    missing = await look_around(EngineWish(model=str(tmp_path / "none.gguf")), {"PATH": ""}, http)
    assert missing.model_head is None


def test_every_setting_is_documented() -> None:
    configuration = (DOCS / "configuration.md").read_text()
    program = (DOCS / "cli.md").read_text()
    documented = set(re.findall(r"^\| `(\w+)` \|", configuration, re.MULTILINE))
    names = {field.name for field in attrs.fields(CommandSettings)}
    assert documented == names
    elsewhere = {"url", "token"}
    assert [name for name in names - elsewhere if f"`{flag_of(name)}" not in program] == []


def test_documented_json_is_json() -> None:
    for block in re.findall(r"```json\n(.*?)```", (DOCS / "cli.md").read_text(), re.DOTALL):
        json.loads(block)
