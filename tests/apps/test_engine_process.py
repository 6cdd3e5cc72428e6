"""The engine as a process: the official client against it, and how it starts and stops."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import openai
import pytest
import trio

pytestmark = pytest.mark.slow

PROGRAM = (sys.executable, "-m", "lunanexa_apps.engine.main")


@attrs.frozen(kw_only=True)
class Running:
    process: trio.Process
    address: tuple[str, int]
    ready_file: Path

    @property
    def url(self) -> str:
        host, port = self.address
        return f"http://{host}:{port}"


@asynccontextmanager
async def running(folder: Path, *arguments: str, **environment: str) -> AsyncIterator[Running]:
    ready = folder / "ready.json"
    command: Sequence[str] = (*PROGRAM, "--ready-file", str(ready), *arguments)
    process = await trio.lowlevel.open_process(
        command, env={**os.environ, **environment}, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        with trio.fail_after(30):
            while not ready.exists():
                assert process.poll() is None
                await trio.sleep(0.01)
        told = json.loads(ready.read_bytes())
        assert told["pid"] == process.pid
        yield Running(process=process, address=(told["host"], told["port"]), ready_file=ready)
    finally:
        process.kill()
        with trio.move_on_after(10, shield=True):
            await process.wait()
        assert process.stderr is not None
        with trio.move_on_after(10, shield=True):
            await process.stderr.aclose()


def use_client(url: str, key: str) -> dict[str, Any]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        said = [{"role": "user", "content": "What does the sea keep?"}]
        request: dict[str, Any] = {"model": "sea", "messages": said, "seed": 7, "max_tokens": 30}
        whole = client.chat.completions.create(**request)
        with client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}) as stream:
            chunks = list(stream)
        vectors = client.embeddings.create(model="sea", input=["the sea", "the sea", "a clock"])
        completion = client.completions.create(model="start-1", prompt="The moon is", max_tokens=12, seed=1)
        raised = []
        for arguments in ({"model": "land"}, {"n": 3}, {"max_tokens": 10**6}):
            try:
                client.chat.completions.create(**{**request, **arguments})
            except openai.APIStatusError as error:
                raised.append((type(error), error.code))
        return {
            "models": [(model.id, model.owned_by) for model in client.models.list()],
            "whole": whole,
            "streamed": "".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
            "usage": chunks[-1].usage,
            "vectors": [row.embedding for row in vectors.data],
            "completion": completion,
            "raised": raised,
        }


async def test_the_official_client_is_served(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("sesame\n")
    names = ("--alias", "sea", "--alias", "start-1")
    async with running(tmp_path, *names, "--api-key-file", str(key_file)) as engine:
        seen = await trio.to_thread.run_sync(use_client, engine.url, "sesame")
        with pytest.raises(openai.AuthenticationError):
            await trio.to_thread.run_sync(use_client, engine.url, "wrong")
    assert seen["models"] == [(name, "lunanexa-reference-engine") for name in ("sea", "start-1")]
    assert seen["whole"].choices[0].message.content == seen["streamed"] != ""
    assert seen["whole"].usage == seen["usage"]
    assert seen["vectors"][0] == seen["vectors"][1] != seen["vectors"][2]
    assert len(seen["vectors"][0]) == 256
    assert seen["completion"].model == "sea"
    assert seen["completion"].usage.completion_tokens <= 12
    assert seen["raised"] == [
        (openai.NotFoundError, "model_not_found"),
        (openai.BadRequestError, None),
        (openai.BadRequestError, "context_length_exceeded"),
    ]


async def test_a_full_line_raises_the_clients_rate_limit_error(tmp_path: Path) -> None:
    def ask(url: str) -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            body: dict[str, Any] = {"model": "reference", "messages": [{"role": "user", "content": "x"}]}
            with client.chat.completions.create(**body, stream=True), pytest.raises(openai.RateLimitError):
                client.chat.completions.create(**body)

    async with running(tmp_path, "--slots", "1", "--queue", "0", "--itl-ms", "1000") as engine:
        await trio.to_thread.run_sync(ask, engine.url)


@asynccontextmanager
async def begun_call(engine: Running) -> AsyncIterator[trio.SocketStream]:
    """A streamed call of 20 tokens that was sent."""
    body = json.dumps({"model": "reference", "prompt": "a " * 20, "max_tokens": 20, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: engine\r\ncontent-length: {len(body)}\r\n\r\n"
    async with await trio.open_tcp_stream(*engine.address) as stream:
        await stream.send_all(head.encode() + body)
        yield stream


@asynccontextmanager
async def begun_stream(engine: Running) -> AsyncIterator[trio.SocketStream]:
    """A stream of 20 tokens that has begun."""
    async with begun_call(engine) as stream:
        seen = b""
        with trio.fail_after(30):
            while b'"text"' not in seen:
                seen += await stream.receive_some()
        yield stream


async def all_of(stream: trio.abc.ReceiveStream) -> bytes:
    """What still comes, to the end or to where it is cut."""
    received = b""
    with contextlib.suppress(trio.BrokenResourceError):
        async for part in stream:
            received += part
    return received


def resident_mib(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


async def test_a_drain_lets_a_stream_end(tmp_path: Path) -> None:
    async with running(tmp_path, "--mode", "echo", "--itl-ms", "20") as engine, begun_stream(engine) as stream:
        engine.process.send_signal(signal.SIGTERM)
        with trio.fail_after(30):
            rest = b"".join([part async for part in stream])
            assert await engine.process.wait() == 0
        assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert not engine.ready_file.exists()


STALLED = ("--mode", "echo", "--itl-ms", "600000")


async def test_what_outlives_the_drain_is_cut(tmp_path: Path) -> None:
    async with running(tmp_path, *STALLED, "--drain-ms", "0") as engine, begun_stream(engine) as stream:
        engine.process.send_signal(signal.SIGTERM)
        with trio.fail_after(30):
            assert b"[DONE]" not in b"".join([part async for part in stream])
            assert await engine.process.wait() == 0


async def connect_for_ever(address: tuple[str, int]) -> None:
    while True:
        async with await trio.open_tcp_stream(*address):
            pass


async def test_a_drain_takes_no_new_caller_and_a_second_signal_ends_it(tmp_path: Path) -> None:
    async with running(tmp_path, *STALLED, "--drain-ms", "600000") as engine, begun_stream(engine):
        engine.process.send_signal(signal.SIGTERM)
        with trio.fail_after(30):
            with pytest.raises(OSError, match="all attempts to connect"):
                await connect_for_ever(engine.address)
            assert engine.process.poll() is None
            engine.process.send_signal(signal.SIGTERM)
            assert await engine.process.wait() == 128 + signal.SIGTERM


async def test_an_exit_that_it_was_told_to_cuts_what_runs(tmp_path: Path) -> None:
    faults = ("--fault", "exit=7,after=1")
    async with running(tmp_path, *STALLED, *faults) as engine, begun_stream(engine) as stream:
        with trio.fail_after(30):
            async with begun_call(engine) as second:
                assert await second.receive_some() == b""
            assert b"[DONE]" not in await all_of(stream)
            assert await engine.process.wait() == 7


async def test_a_slow_stop_is_deaf_for_its_time_and_then_drains(tmp_path: Path) -> None:
    faults = ("--fault", "slow-stop=3000")
    async with running(tmp_path, "--mode", "echo", *faults) as engine:
        assert engine.process.stderr is not None
        said = b""
        with trio.fail_after(30):
            for _ in range(3):
                engine.process.send_signal(signal.SIGTERM)
                while b"told_to_stop_slowly" not in said:
                    said += await engine.process.stderr.receive_some()
            async with begun_stream(engine):
                pass
            said += await all_of(engine.process.stderr)
            assert await engine.process.wait() == 0
        events = [json.loads(line)["event"] for line in said.splitlines()]
        assert events == ["faults_armed", "serving", "told_to_stop_slowly", "draining", "stopped"]


async def test_a_leak_is_in_memory(tmp_path: Path) -> None:
    async with running(tmp_path, "--fault", "leak=64") as engine:
        before_mib = resident_mib(engine.process.pid)
        for _ in range(2):
            async with begun_stream(engine):
                pass
        assert resident_mib(engine.process.pid) >= before_mib + 128


async def test_an_exit_at_the_start_comes_before_anything_listens(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    ended = await trio.run_process(
        (*PROGRAM, "--fault", "exit-at-start=3", "--ready-file", str(ready)), capture_stderr=True, check=False
    )
    assert ended.returncode == 3
    assert [json.loads(line)["event"] for line in ended.stderr.splitlines()] == [
        "faults_armed",
        "told_to_exit_at_start",
    ]
    assert not ready.exists()


async def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    async with running(tmp_path) as engine:
        port = str(engine.address[1])
        second = await trio.run_process((*PROGRAM, "--port", port), capture_stderr=True, check=False)
    assert second.returncode == 1
    assert json.loads(second.stderr)["event"] == "cannot_listen"


@pytest.mark.parametrize(
    "arguments",
    [("--slots", "0"), ("--ttft-ms", "nan"), ("--mode", "think"), ("--api-key-file", "/nowhere"), ("--port", "70000"),
     ("--alias", "a", "--alias", "a"), ("--alias", "")],
)  # fmt: skip
async def test_a_wrong_option_is_told(arguments: tuple[str, ...]) -> None:
    ended = await trio.run_process((*PROGRAM, *arguments), capture_stderr=True, check=False)
    assert ended.returncode == 2
    assert b"lunanexa-engine: error: " in ended.stderr
