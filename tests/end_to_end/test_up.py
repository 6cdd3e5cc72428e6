"""``lunanexa up`` as its user sees it: what it prints, what the other commands say, how it refuses and stops."""

import json
import os
import shlex
import shutil
import signal
import stat
from pathlib import Path

import httpx2
import pytest
import trio

from lunanexa_simulation.real.proc import command_line
from tests.end_to_end.installation import (
    LUNANEXA,
    Ready,
    Up,
    answers,
    ask,
    engine_with,
    gone,
    held_stream,
    lunanexa,
    receipt_of,
    running,
)
from tests.end_to_end.processes import parent_of

pytestmark = pytest.mark.slow


def test_the_ready_file_tells_all_and_only_to_its_owner(installation: Up, ready: Ready) -> None:
    assert stat.S_IMODE(installation.ready_file.stat().st_mode) == 0o600
    assert set(json.loads(installation.ready_file.read_bytes())) == {
        *("base_url", "api_key", "operator_token", "model", "models", "pids")
    }
    assert set(ready.pids) == {"controller", "node", "engine"}
    assert "lunanexa_apps.controller.main" in command_line(ready.pid("controller"))
    assert "lunanexa_apps.node.main" in command_line(ready.pid("node"))
    assert any(word.endswith("lunanexa-engine") for word in command_line(ready.pid("engine")))
    assert parent_of(ready.pid("node")) == installation.process.pid
    secrets = installation.data_dir / "controller" / "secrets"
    assert (secrets / "api_key").read_text().strip() == ready.api_key
    assert (secrets / "operator_token").read_text().strip() == ready.operator_token


def test_no_secret_stands_in_a_command_line_or_a_log(installation: Up, ready: Ready) -> None:
    lines = " ".join(installation.left().values())
    for secret in (ready.api_key, ready.operator_token):
        assert secret not in lines
        assert secret not in installation.errors
        assert secret not in installation.engine_log


def test_the_engine_serves_nobody_but_the_gateway(ready: Ready) -> None:
    line = command_line(ready.pid("engine"))
    origin = f"http://127.0.0.1:{line[line.index('--port') + 1]}"
    question = {"model": ready.model, "messages": [{"role": "user", "content": "Hello"}]}
    for headers in ({}, {"authorization": f"Bearer {ready.api_key}"}):
        answer = httpx2.post(f"{origin}/v1/chat/completions", json=question, headers=headers)
        assert answer.status_code == 401
        assert httpx2.get(f"{origin}/v1/models", headers=headers).status_code == 401
    assert "--api-key" not in line


async def test_the_printed_curl_works_when_pasted(installation: Up, ready: Ready) -> None:
    assert shutil.which("curl") is not None, "this test needs curl"
    assert ready.base_url in installation.output
    assert str(installation.data_dir) in installation.output
    pasted = installation.output.partition("Try it:\n")[2].replace("\\\n", "")  # as a shell joins lines
    with trio.fail_after(60):
        done = await trio.run_process(shlex.split(pasted), capture_stdout=True)
    events = [line for line in done.stdout.decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[0].removeprefix("data: "))["model"] == ready.model


async def test_status_for_people_and_for_programs(installation: Up, ready: Ready, tmp_path: Path) -> None:
    here = ("--data-dir", str(installation.data_dir))
    page = await lunanexa(tmp_path, "status", *here)
    text = page.stdout.decode()
    assert page.returncode == 0, page.stderr
    for word in (ready.origin, ready.model, "local", str(ready.pid("engine")), "USAGE"):
        assert word in text
    told = await lunanexa(
        tmp_path, "status", "-o", "json", LUNANEXA_URL=ready.origin, LUNANEXA_TOKEN=ready.operator_token
    )
    assert told.returncode == 0, told.stderr
    (deployment,) = json.loads(told.stdout)["deployments"]
    assert deployment["ready"] is True
    assert [replica["pid"] for replica in deployment["replicas"]] == [ready.pid("engine")]


async def test_status_does_not_take_an_api_key(ready: Ready, tmp_path: Path) -> None:
    told = await lunanexa(tmp_path, "status", LUNANEXA_URL=ready.origin, LUNANEXA_TOKEN=ready.api_key)
    assert told.returncode == 77
    assert b"operator token" in told.stderr


async def test_invoke_streams_and_ends_with_the_numbers(installation: Up, tmp_path: Path) -> None:
    here = ("--data-dir", str(installation.data_dir), "--max-tokens", "20")
    said = await lunanexa(tmp_path, "invoke", "What does the sea keep?", *here)
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip()
    for word in (b"first token ", b" tokens in", b" out", b"queued ", b"total "):
        assert word in said.stderr


async def test_invoke_for_programs(installation: Up, ready: Ready, tmp_path: Path) -> None:
    said = await lunanexa(
        *(tmp_path, "invoke", ready.model, "What does the sea keep?", "-o", "json"),
        *("--data-dir", str(installation.data_dir)),
    )
    assert said.returncode == 0, said.stderr
    told = json.loads(said.stdout)
    assert told["content"]
    receipt = receipt_of(ready, told["workload_id"])
    assert (receipt["input_tokens"], receipt["output_tokens"]) == (
        *(told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"]),
    )


async def test_a_data_directory_in_use_is_refused_with_its_holder(installation: Up, tmp_path: Path) -> None:
    refused = await lunanexa(tmp_path, "up", "--data-dir", str(installation.data_dir), "--listen", "127.0.0.1:0")
    assert refused.returncode == 75
    assert f"process {installation.process.pid} already".encode() in refused.stderr


async def test_a_port_in_use_is_refused_with_its_holder(ready: Ready, tmp_path: Path) -> None:
    address = ready.origin.removeprefix("http://")
    refused = await lunanexa(tmp_path, "up", "--data-dir", str(tmp_path / "data"), "--listen", address)
    assert refused.returncode == 69
    assert f"{address} is in use: process {ready.pid('controller')} ".encode() in refused.stderr
    assert b"--listen" in refused.stderr


async def test_ctrl_c_waits_for_a_stream_and_says_so(tmp_path: Path) -> None:
    async with running(tmp_path, *engine_with(tmp_path, "--itl-ms", "20")) as up:
        ready = up.ready
        engine = ready.pid("engine")
        async with held_stream(ready, max_tokens=100) as stream:
            os.kill(engine, signal.SIGSTOP)  # So that the stream can't end before the drain was seen.
            up.interrupt()
            await up.until(lambda: "waiting for 1 request in flight" in up.errors, "what it waits for")
            assert not up.ready_file.exists()
            refused = await trio.to_thread.run_sync(ask, ready)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert int(refused.headers["retry-after"]) >= 1
            os.kill(engine, signal.SIGCONT)
            lines = await stream.rest()
        assert lines[-1] == "data: [DONE]"
        assert sum('"content":"' in line for line in lines) >= 100
        assert await up.wait_end() == 0
        assert gone(engine)


async def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, *engine_with(tmp_path, "--itl-ms", "600000")) as up:
        ready = up.ready
        async with held_stream(ready, max_tokens=100) as stream:
            up.interrupt()
            await up.until(lambda: "waiting for 1 request in flight" in up.errors, "what it waits for")
            up.interrupt()
            assert "data: [DONE]" not in await stream.rest()
            assert await up.wait_end() == 130
        assert gone(ready.pid("engine"))


async def look(up: Up) -> dict[str, str]:
    """The problems that the node's own doctor finds, by step."""
    command = [str(LUNANEXA.with_name("lunanexa-node")), "doctor", "--data-dir", str(up.data_dir), "-o", "json"]
    done = await trio.run_process(command, capture_stdout=True, check=False)
    steps = json.loads(done.stdout)["steps"]
    found = {one["step"]: one["found"] for one in steps if one["verdict"] == "problem"}
    assert done.returncode == (1 if found else 0)
    return found


async def test_a_restart_keeps_keys_and_books(tmp_path: Path) -> None:
    async with running(tmp_path) as up:
        first = up.ready
        assert await trio.to_thread.run_sync(answers, first)
        await up.stop()
    async with running(tmp_path) as up:
        second = up.ready
        assert (second.api_key, second.operator_token) == (first.api_key, first.operator_token)
        assert second.pid("engine") != first.pid("engine")
        assert await trio.to_thread.run_sync(answers, second)
        told = await lunanexa(tmp_path, "status", "-o", "json", "--data-dir", str(up.data_dir))
        assert json.loads(told.stdout)["usage"]["requests"] == 2
        assert await look(up) == {}, "its controller has another port than at the enrolment"
        await up.stop()
    assert (await look(up)).keys() == {"controller"}


async def test_the_death_of_up_leaves_the_engine_to_the_next_one(tmp_path: Path) -> None:
    async with running(tmp_path) as up:
        first = up.ready
        up.process.kill()
        await up.until(
            lambda: gone(first.pid("controller"), first.pid("node")), "the end of both children", running=False
        )
        assert not gone(first.pid("engine"))
        async with running(tmp_path) as following:
            second = following.ready
            assert second.pid("engine") == first.pid("engine")
            assert await trio.to_thread.run_sync(answers, second)
            await following.stop()
            assert gone(first.pid("engine"))
