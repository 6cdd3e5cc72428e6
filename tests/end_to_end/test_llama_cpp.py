"""A real model in llama.cpp. By hand: LUNANEXA_TEST_LLAMA_SERVER and LUNANEXA_TEST_GGUF name the program and the
model file; then ``pytest -m by_hand tests/end_to_end``."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx2
import openai
import pytest
import trio

from tests.end_to_end.installation import LIMIT_S, Ready, gone, receipt_of, running, status_of

pytestmark = [pytest.mark.slow, pytest.mark.by_hand]

SERVER = os.environ.get("LUNANEXA_TEST_LLAMA_SERVER")
MODEL = os.environ.get("LUNANEXA_TEST_GGUF")
KEY = "sesame"


def use_named_events(client: openai.OpenAI, ready: Ready) -> None:
    """Responses and messages, whole and streamed; whole answers are put together from a stream here too."""
    asked: dict[str, Any] = {"model": ready.model, "input": "Say hi", "max_output_tokens": 8, "temperature": 0}
    whole = client.responses.with_raw_response.create(**asked)
    with client.responses.create(**asked, stream=True) as stream:
        events = list(stream)
    assert events[-1].type == "response.completed"
    assert whole.parse().output_text == events[-1].response.output_text != ""
    said = {
        "messages": [{"role": "user", "content": "Say hi"}],
        "max_tokens": 8,
        "model": ready.model,
        "temperature": 0,
    }
    headers = {"x-api-key": ready.api_key}
    message = httpx2.post(f"{ready.base_url}/messages", headers=headers, json=said, timeout=60)
    streamed = httpx2.post(f"{ready.base_url}/messages", headers=headers, json=said | {"stream": True}, timeout=60)
    assert message.json()["content"][0]["text"]
    assert streamed.text.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')
    for answer in (whole, message, streamed):
        receipt = receipt_of(ready, answer.headers["x-lunanexa-workload-id"])
        assert 0 < receipt["output_tokens"] <= 8
        assert receipt["input_tokens"] > 8
        assert not receipt["estimated"]


def use(ready: Ready) -> None:
    """What any model can be asked: which words it finds is its own business."""
    said = [{"role": "user", "content": "What is the capital of France?"}]
    request: dict[str, Any] = {"model": ready.model, "messages": said, "temperature": 0, "max_tokens": 16}
    with openai.OpenAI(base_url=ready.base_url, api_key=ready.api_key, max_retries=0) as client:
        assert [model.id for model in client.models.list()] == [ready.model]
        whole = client.chat.completions.create(**request)
        assert whole.choices[0].message.content
        assert whole.usage is not None
        for asked in (False, True):
            options: dict[str, Any] = {"stream_options": {"include_usage": True}} if asked else {}
            answer = client.chat.completions.with_raw_response.create(**request, **options, stream=True)
            with answer.parse() as stream:
                chunks = list(stream)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            told = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
            receipt = receipt_of(ready, answer.headers["x-lunanexa-workload-id"])
            assert 0 < receipt["output_tokens"] <= 16
            assert not receipt["estimated"]
            assert told == ([receipt["output_tokens"]] if asked else [])
        completion = client.completions.create(model=ready.model, prompt="One, two, three,", max_tokens=8)
        assert completion.choices[0].text
        use_named_events(client, ready)
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(**{**request, "messages": "no list"})


@pytest.mark.skipif(SERVER is None or MODEL is None, reason="names no llama-server and no model file")
async def test_a_real_model_is_served(tmp_path: Path) -> None:
    assert SERVER is not None
    assert MODEL is not None
    async with running(tmp_path, "--model", MODEL, "--engine-binary", SERVER, "--slots", "2") as up:
        ready = up.ready
        await trio.to_thread.run_sync(use, ready)
        await up.stop()
        assert gone(ready.pid("engine"))


@attrs.frozen
class Server:
    """A llama-server of somebody else."""

    process: "subprocess.Popen[bytes]"
    url: str

    def serves(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/health").status_code == 200
        except httpx2.TransportError:
            return False


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    assert SERVER is not None
    assert MODEL is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [SERVER, "-m", MODEL, "--alias", "moon", "--host", "127.0.0.1", "--port", str(port), "-np", "2"]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "LLAMA_API_KEY": KEY})
    yield Server(process, f"http://127.0.0.1:{port}")
    process.kill()
    process.wait()


@pytest.mark.skipif(SERVER is None or MODEL is None, reason="names no llama-server and no model file")
async def test_a_real_server_is_adopted_and_left_running(tmp_path: Path, server: Server) -> None:
    with trio.fail_after(LIMIT_S):
        while not await trio.to_thread.run_sync(server.serves):
            assert server.process.poll() is None
            await trio.sleep(0.1)
    folder = tmp_path / "up"
    folder.mkdir()
    async with running(folder, "--adopt", server.url, LUNANEXA_ADOPT_KEY=KEY) as up:
        ready = up.ready
        assert ready.model == "moon"
        await trio.to_thread.run_sync(use, ready)
        (deployment,) = (await trio.to_thread.run_sync(status_of, ready))["deployments"]
        assert (deployment["driver"], deployment["queue"]["slots"]) == ("llama_cpp", 2)
        await up.stop()
    assert server.process.poll() is None
    assert await trio.to_thread.run_sync(server.serves)
