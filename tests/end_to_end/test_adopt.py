"""Servers that run already are served, with every model that they list, and left running."""

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import httpx2
import pytest
import trio

from tests.end_to_end.fake_server import FakeServer
from tests.end_to_end.installation import ENGINE, LIMIT_S, QUESTION, Ready, Up, answers, lunanexa, running, status_of
from tests.recorded import recorded

pytestmark = pytest.mark.slow


@pytest.fixture
def engine(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """An engine of somebody else, without a key; ``engine.json`` tells where, once it serves."""
    with (tmp_path / "engine.log").open("wb") as log:
        engine = subprocess.Popen(
            [str(ENGINE), "--alias", "sea", "--ready-file", str(tmp_path / "engine.json")],
            stderr=log,
            start_new_session=True,
        )
    yield engine
    engine.kill()
    engine.wait()


async def test_an_adopted_server_is_served_and_left_running(engine: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    told = tmp_path / "engine.json"
    with trio.fail_after(LIMIT_S):
        while not told.exists():
            assert engine.poll() is None
            await trio.sleep(0.02)
    url = f"http://127.0.0.1:{json.loads(told.read_bytes())['port']}"
    folder = tmp_path / "up"
    folder.mkdir()
    async with running(folder, "--adopt", url) as up:
        ready = up.ready
        assert ready.model == "sea"
        assert ready.pids["engine"] is None
        assert url in up.output
        assert await trio.to_thread.run_sync(answers, ready)
        page = await lunanexa(tmp_path, "status", "-o", "json", "--data-dir", str(up.data_dir))
        (deployment,) = json.loads(page.stdout)["deployments"]
        assert deployment["adopted"] is True
        await up.stop()
    assert engine.poll() is None
    assert httpx2.get(f"{url}/v1/models").json()["data"][0]["id"] == "sea"


VLLM_KEY = "key-of-the-vllm"
OLLAMA_MODELS = ["nomic-embed-text:latest", "qwen3:0.6b"]
VLLM_MODELS = ["Tiny/sea-0.1b", "moon", "shanty"]


def listed(ready: Ready) -> list[str]:
    answer = httpx2.get(
        f"{ready.base_url}/models", headers={"authorization": f"Bearer {ready.api_key}"}, timeout=LIMIT_S
    )
    return sorted(card["id"] for card in answer.raise_for_status().json()["data"])


def chat(ready: Ready, model: str, *, stream: bool = False) -> httpx2.Response:
    return httpx2.post(
        f"{ready.base_url}/chat/completions",
        headers={"authorization": f"Bearer {ready.api_key}"},
        json={"model": model, "messages": [QUESTION], "max_tokens": 4, "stream": stream},
        timeout=LIMIT_S,
    )


async def until_listed(up: Up, models: list[str]) -> None:
    wanted = sorted(models)
    with trio.fail_after(LIMIT_S):
        while await trio.to_thread.run_sync(listed, up.ready) != wanted:
            await trio.sleep(0.1)


class Servers:
    """An Ollama, a vLLM that asks for a key, and a llama-server."""

    def __init__(self) -> None:
        self.ollama = FakeServer(recorded("ollama"))
        self.vllm = FakeServer(recorded("vllm"), VLLM_KEY)
        self.llama = FakeServer(recorded("llama-server"))

    def options(self, folder: Path) -> tuple[str, ...]:
        keys = folder / "keys"
        keys.write_text(f"{self.vllm.url}/v1 {VLLM_KEY}\n")
        adopt = [option for server in (self.ollama, self.vllm, self.llama) for option in ("--adopt", server.url)]
        return (*adopt, "--adopt-key-file", str(keys))


@asynccontextmanager
async def three_servers() -> AsyncIterator[tuple[Servers, AsyncExitStack]]:
    """All three run; the stack holds the vLLM, so that it can be taken away."""
    servers = Servers()
    async with servers.ollama.running(), servers.llama.running(), AsyncExitStack() as vllm:
        await vllm.enter_async_context(servers.vllm.running())
        yield servers, vllm


async def test_every_model_of_three_servers_is_an_alias(tmp_path: Path) -> None:
    async with three_servers() as (servers, _), running(tmp_path, *servers.options(tmp_path)) as up:
        ready = up.ready
        assert sorted(ready.models) == sorted([*OLLAMA_MODELS, *VLLM_MODELS, "gemma"])
        assert await trio.to_thread.run_sync(listed, ready) == sorted(ready.models)
        assert "gpt-oss:120b-cloud is run by another machine, and left out" in up.errors
        for model in ready.models:
            for stream in (False, True):
                answer = await trio.to_thread.run_sync(partial(chat, ready, model, stream=stream))
                assert (answer.status_code, "the sea" in answer.text) == (200, True), (model, answer.text)
        assert servers.vllm.asked == [name for name in VLLM_MODELS for _ in range(2)]
        assert servers.llama.asked == ["gemma", "gemma"]
        shown = {entry["alias"]: entry for entry in (await trio.to_thread.run_sync(status_of, ready))["deployments"]}
        assert all(entry["adopted"] for entry in shown.values())
        assert {alias: (entry["driver"], entry["queue"]["slots"]) for alias, entry in shown.items()} == {
            **dict.fromkeys(OLLAMA_MODELS, ("ollama", 1)),
            **dict.fromkeys(VLLM_MODELS, ("vllm", 64)),
            "gemma": ("llama_cpp", 4),
        }
        moon = httpx2.get(f"{ready.base_url}/models/moon", headers={"authorization": f"Bearer {ready.api_key}"}).json()
        assert moon["meta"] == {
            "state": "ready",
            "context_length": 1024,
            "capabilities": ["chat/completions", "completions", "messages", "responses"],
        }
        page = await lunanexa(tmp_path, "status", "--data-dir", str(up.data_dir))
        assert b"ollama, adopted" in page.stdout
        assert VLLM_KEY not in up.output + up.errors + page.stdout.decode()
        await up.stop()
        assert servers.ollama.models, "nothing that was adopted is stopped"


async def test_models_and_servers_come_and_go(tmp_path: Path) -> None:
    async with three_servers() as (servers, vllm):
        async with running(tmp_path, *servers.options(tmp_path)) as up:
            pids = up.ready.pids
            servers.ollama.remove("qwen3:0.6b")
            await until_listed(up, ["nomic-embed-text:latest", *VLLM_MODELS, "gemma"])
            await vllm.aclose()
            await until_listed(up, ["nomic-embed-text:latest", "gemma"])
            for gone in ("qwen3:0.6b", "moon"):
                answer = await trio.to_thread.run_sync(chat, up.ready, gone)
                assert answer.status_code == 503, answer.text
                assert int(answer.headers["retry-after"]) >= 1
            servers.ollama.add("qwen3:0.6b")
            await vllm.enter_async_context(servers.vllm.running())
            await until_listed(up, [*OLLAMA_MODELS, *VLLM_MODELS, "gemma"])
            assert (await trio.to_thread.run_sync(chat, up.ready, "shanty")).status_code == 200
            assert up.ready.pids == pids, "nothing of ours was started again"
            servers.ollama.add("new:1b")
            servers.ollama.remove("nomic-embed-text:latest")
            await up.stop()
        async with running(tmp_path, *servers.options(tmp_path)) as up:
            assert await trio.to_thread.run_sync(listed, up.ready) == sorted(
                ["qwen3:0.6b", "new:1b", *VLLM_MODELS, "gemma"]
            )
            await up.stop()
        (tmp_path / "keys").unlink()
        async with running(tmp_path, "--adopt", servers.llama.url, "--alias", "only") as up:
            assert await trio.to_thread.run_sync(listed, up.ready) == ["only"]
            secrets = list(up.data_dir.glob("*/secrets/adopted_keys"))
            assert secrets == [], "a key that is not needed is not kept"
            await up.stop()
