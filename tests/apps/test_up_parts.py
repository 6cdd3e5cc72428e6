"""The small parts of ``lunanexa up``: orders, what is read of a status, what is found around, and refusals."""

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from lunanexa_apps.setting_kinds import HostPort, StoreUrl
from lunanexa_apps.settings import flag_of
from lunanexa_apps.up.choice import AdoptedServer, EngineWish, Silence
from lunanexa_apps.up.configuration import CommandSettings, LogFormat
from lunanexa_apps.up.orders import child_orders, reachable
from lunanexa_apps.up.servers import ask_servers
from lunanexa_apps.up.status_view import describe_exit, describe_state, engine_pid, not_placed, replicas_of
from lunanexa_apps.up.surroundings import look_around, usual_servers
from lunanexa_core.drivers.detection import RecognisedServer
from lunanexa_core.workload import Dialect
from lunanexa_ports.http_client import HttpRequest, HttpResponse, HttpUnreachable
from tests.apps.scripted_http import Reply, ScriptedHttp
from tests.recorded import recorded

SETTINGS = CommandSettings(data_dir="/data")
NODES = HostPort("0.0.0.0", 8401)
DOCS = Path(__file__).parents[2] / "docs"


def test_orders_tell_the_children_everything_but_secrets() -> None:
    environment = {"PATH": "/bin", "LUNANEXA_TOKEN": "planted", "LUNANEXA_LISTEN": "x"}
    controller, node = child_orders(SETTINGS, HostPort("0.0.0.0", 8400), NODES, environment, "warning")
    assert controller.argv == (
        *(sys.executable, "-m", "lunanexa_apps.controller.main"),
        *("--data-dir", "/data", "--listen", "0.0.0.0:8400", "--node-listen", "0.0.0.0:8401"),
        *("--node-url", "none"),
        *("--queue-requests-max", "256", "--queue-wait-ms", "60000", "--default-deadline-ms", "600000"),
        *("--retain-ms-max", "86400000", "--retain-bytes-max", "268435456"),
        *("--ledger-keep-receipts", "1000000", "--ledger-keep-days", "0", "--ledger-archive", "on"),
        *("--log-format", "auto"),
    )
    assert node.argv == (
        *(sys.executable, "-m", "lunanexa_apps.node.main", "run"),
        *("--data-dir", "/data", "--controller", "https://127.0.0.1:8401"),
        *("--token-file", "/data/node/secrets/token"),
        *("--log-format", "auto"),
    )
    for order in (controller, node):
        assert order.environment == {"PATH": "/bin", "LUNANEXA_LOG_LEVEL": "warning"}


def test_orders_pass_on_what_was_set() -> None:
    settings = attrs.evolve(SETTINGS, body_limit_bytes=2048, log_format=LogFormat.JSON)
    controller, node = child_orders(settings, HostPort("127.0.0.1", 1), NODES, {}, "debug")
    assert controller.argv[-5:] == ("--body-limit-bytes", "2048", "--log-format", "json", "-v")
    assert node.argv[-3:] == ("--log-format", "json", "-v")


def test_the_node_is_told_of_other_controllers() -> None:
    settings = attrs.evolve(SETTINGS, standby=("https://two:8401", "https://three:8401"))
    controller, node = child_orders(settings, HostPort("127.0.0.1", 8400), NODES, {}, "info")
    named = [node.argv[place + 1] for place, word in enumerate(node.argv) if word == "--controller"]
    assert named == ["https://127.0.0.1:8401", "https://two:8401", "https://three:8401"]
    assert "--controller" not in controller.argv


def test_a_port_of_one_s_own_choice_may_be_told_to_all_nodes() -> None:
    settings = attrs.evolve(SETTINGS, node_listen=NODES)
    controller, _ = child_orders(settings, HostPort("127.0.0.1", 8400), NODES, {}, "info")
    assert "--node-url" not in controller.argv


def test_the_store_is_told_to_the_controller_alone_and_not_in_its_arguments() -> None:
    url = "postgresql://luna:s3cret@db/fleet"
    settings = attrs.evolve(SETTINGS, store=StoreUrl(url))
    environment = {"PATH": "/bin", "LUNANEXA_STORE": url}
    controller, node = child_orders(settings, HostPort("127.0.0.1", 1), NODES, environment, "info")
    assert controller.environment == {"PATH": "/bin", "LUNANEXA_LOG_LEVEL": "info", "LUNANEXA_STORE": url}
    assert node.environment == {"PATH": "/bin", "LUNANEXA_LOG_LEVEL": "info"}
    assert not [argument for order in (controller, node) for argument in order.argv if "s3cret" in argument]


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
    assert describe_state((replica,), adopted=True) == "waiting for the adopted server to answer"
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
        (
            {"kind": "no_memory", "detail": "needs 8 MiB, 5 MiB were available after 120 s"},
            "was not started for want of memory: it needs 8 MiB, 5 MiB were available after 120 s",
        ),
        ({"kind": "cut_off"}, "was stopped because its node was cut off from its controller for too long"),
        (
            {"kind": "memory_limit", "detail": "holds 9 MiB, its limit is 8 MiB"},
            "was stopped for its memory: it holds 9 MiB, its limit is 8 MiB",
        ),
        ({"kind": "new_kind"}, "ended: new_kind"),
        ({}, None),
        (None, None),
    ],
)
def test_exits_in_words(document: object, words: str | None) -> None:
    assert describe_exit(document) == words


def names(servers: tuple[AdoptedServer, ...]) -> list[tuple[str, tuple[str, ...] | Silence]]:
    return [
        (s.url, s.told if isinstance(s.told, Silence) else tuple(model.name for model in s.told.models))
        for s in servers
    ]


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, b'{"object":"list","data":[{"id":"a"},{"id":"b"}]}', ("a", "b")),
        (200, b'{"data":[]}', ()),
        (200, b"<html>", Silence.NO_LIST),
        (404, b"{}", Silence.NO_LIST),
        (401, b"{}", Silence.KEY),
        (403, b"{}", Silence.KEY),
        (503, b"{}", Silence.LOADING),
    ],
)
async def test_what_a_server_tells(status: int, body: bytes, told: object) -> None:
    http = ScriptedHttp(lambda _: Reply(status, [body]))
    url = "http://127.0.0.1:8000"
    assert names(await ask_servers((url, url), {}, http, 1_000)) == [(url, told)]


async def test_a_server_that_is_not_there_or_says_nothing(autojump_clock: MockClock) -> None:
    class Slow(ScriptedHttp):
        @asynccontextmanager
        async def exchange(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
            await trio.Event().wait()
            yield Reply(200)

    def refuse(_: HttpRequest) -> Reply:
        raise HttpUnreachable("refused")

    url = "http://127.0.0.1:8000"
    for http in (ScriptedHttp(refuse), Slow(refuse)):
        assert names(await ask_servers((url,), {}, http, 1_000)) == [(url, Silence.NO_ANSWER)]
    assert autojump_clock.current_time() < 10


async def test_a_key_goes_to_its_own_server_alone() -> None:
    http = ScriptedHttp(lambda _: Reply(200, [b'{"data":[{"id":"a"}]}']))
    await ask_servers(("http://one:1", "http://two:2"), {"http://one:1": "sesame"}, http, 1_000)
    keys = {(request.host, dict(request.headers).get(b"authorization")) for request in http.requests}
    assert keys == {("one", b"Bearer sesame"), ("two", None)}


async def test_a_llama_server_is_asked_what_its_flags_are() -> None:
    def server(request: HttpRequest) -> Reply:
        if request.method == "POST":
            assert request.body == b"{}"
            return Reply(400 if request.target == "/v1/embeddings" else 501)
        body = recorded("llama-server").get(request.target)
        return Reply(404) if body is None else Reply(200, [body])

    (found,) = await ask_servers(("http://127.0.0.1:8080",), {}, ScriptedHttp(server), 1_000)
    assert isinstance(found.told, RecognisedServer)
    assert found.told.dialects is not None
    assert Dialect.EMBEDDINGS in found.told.dialects
    assert Dialect.RERANK not in found.told.dialects


async def test_only_servers_that_list_a_model_are_offered() -> None:
    def server(request: HttpRequest) -> Reply:
        match request.port:
            case 11434:
                body = recorded("ollama").get(request.target)
                return Reply(404) if body is None else Reply(200, [body])
            case 8000:
                raise HttpUnreachable("refused")
            case _:
                return Reply(404, [b"not here"])

    http = ScriptedHttp(server)
    with trio.fail_after(30):
        found = await usual_servers(http)
    assert names(found) == [("http://127.0.0.1:11434", ("qwen3:0.6b", "nomic-embed-text:latest"))]
    asked = [(request.port, request.target) for request in http.requests]
    assert [target for port, target in asked if port == 8080] == ["/v1/models"], "what lists nothing is asked no more"


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
    found = await look_around(EngineWish(adopt=("http://h:1",)), {}, http)
    assert names(found.adopted) == [("http://h:1", ("a",))]
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
