"""The WebSocket surface of a real installation: the documented example as it stands, a resumption, an end."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
import trio_websocket
from websockets import Subprotocol
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.end_to_end.installation import LIMIT_S, QUESTION, Ready, Up, receipt_of, running

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "websocket.md"


def stream_url(ready: Ready) -> str:
    return ready.base_url.replace("http://", "ws://") + "/stream"


def connection(ready: Ready) -> Any:
    return trio_websocket.open_websocket_url(
        stream_url(ready),
        subprotocols=["lunanexa.v1"],
        extra_headers=[(b"authorization", b"Bearer " + ready.api_key.encode())],
    )


def test_the_documented_example_runs(ready: Ready, tmp_path: Path) -> None:
    """With ``websockets``, which is not ours."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "example.py"
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, str(path)],
        env={
            **os.environ,
            "LUNANEXA_STREAM": stream_url(ready),
            "LUNANEXA_API_KEY": ready.api_key,
            "LUNANEXA_MODEL": ready.model,
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^sea: '.+', receipt \d+$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^hills: '.+', receipt \d+$", done.stdout, re.MULTILINE), done.stdout


async def test_a_dropped_stream_is_resumed(ready: Ready) -> None:
    request = {"model": ready.model, "messages": [QUESTION], "max_tokens": 200, "ignore_eos": True, "stream": True}
    submit = {"type": "submit", "id": "a", "endpoint": "chat/completions", "request": request, "resumable": True}

    seen: list[int] = []
    frames: list[dict[str, Any]] = []
    with trio.fail_after(LIMIT_S):
        async with connection(ready) as client:
            await client.send_message(json.dumps(submit))
            accepted = json.loads(await client.get_message())
            assert accepted["type"] == "accepted"
            while len(seen) < 5:
                seen.append(json.loads(await client.get_message())["seq"])
        async with connection(ready) as client:
            resume = {"type": "resume", "id": "b", "after": 3, "token": accepted["resume_token"]}
            await client.send_message(json.dumps(resume))
            while not frames or frames[-1]["type"] != "completed":
                frames.append(json.loads(await client.get_message()))
    assert [frame["seq"] for frame in frames] == list(range(4, 4 + len(frames)))
    assert seen == [1, 2, 3, 4, 5]
    response = frames[-1]["response"]
    assert response["usage"]["output"] == 200
    assert receipt_of(ready, response["workload_id"])["outcome"] is None


async def test_an_installation_that_stops_says_goodbye(tmp_path: Path) -> None:
    """What runs may end, and a connection that is idle holds nothing up."""
    async with running(tmp_path) as up:
        heard = await trio.to_thread.run_sync(_heard_over_a_stop, up)
        assert await up.wait_end() == 0
    idle, busy = heard
    assert idle == ["goaway", 1012]
    assert busy[0] == "accepted"
    assert "goaway" in busy
    assert busy[-1] == 1012
    assert "completed" in busy


async def test_a_drain_that_an_operator_begins_is_told_too(tmp_path: Path) -> None:
    async with running(tmp_path) as up:
        heard = await trio.to_thread.run_sync(_heard_over_a_drain, up.ready)
    assert heard == ["goaway", 1012]


def _heard_over_a_drain(ready: Ready) -> list[object]:
    """Types of the frames on an idle connection, and its close code."""
    key = {"authorization": f"Bearer {ready.api_key}"}
    frames: list[object] = []
    with connect(stream_url(ready), additional_headers=key, subprotocols=[Subprotocol("lunanexa.v1")]) as idle:
        operator = {"authorization": f"Bearer {ready.operator_token}"}
        httpx2.post(f"{ready.origin}/admin/v1/drain", headers=operator, timeout=LIMIT_S).raise_for_status()
        with contextlib.suppress(ConnectionClosed):
            while True:
                frames.append(json.loads(idle.recv(timeout=LIMIT_S))["type"])
        return [*frames, idle.close_code]


def _heard_over_a_stop(up: Up) -> list[list[object]]:
    """Types of the frames on an idle and a busy connection, and their close codes."""
    ready = up.ready
    request = {"model": ready.model, "messages": [QUESTION], "max_tokens": 100, "ignore_eos": True, "stream": True}
    submit = {"type": "submit", "id": "a", "endpoint": "chat/completions", "request": request}
    key = {"authorization": f"Bearer {ready.api_key}"}
    told: list[list[object]] = []
    with (
        connect(stream_url(ready), additional_headers=key, subprotocols=[Subprotocol("lunanexa.v1")]) as idle,
        connect(stream_url(ready), additional_headers=key, subprotocols=[Subprotocol("lunanexa.v1")]) as busy,
    ):
        busy.send(json.dumps(submit))
        first = json.loads(busy.recv(timeout=LIMIT_S))["type"]
        up.interrupt()
        for before, client in (([], idle), ([first], busy)):
            frames: list[object] = [*before]
            with contextlib.suppress(ConnectionClosed):
                while True:
                    frames.append(json.loads(client.recv(timeout=LIMIT_S))["type"])
            told.append([*frames, client.close_code])
    return told
