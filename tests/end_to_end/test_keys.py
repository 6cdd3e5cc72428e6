"""A key with limits, by the program and the official client: made, used up, shown, revoked under a stream."""

import json
from pathlib import Path
from typing import Any

import attrs
import httpx2
import openai
import pytest
import trio

from tests.end_to_end.installation import (
    LIMIT_S,
    QUESTION,
    Ready,
    Up,
    engine_with,
    held_stream,
    lunanexa,
    receipt_of,
    running,
)

pytestmark = pytest.mark.slow


async def key_command(up: Up, *arguments: str) -> Any:
    ended = await lunanexa(up.folder, "key", *arguments, "--data-dir", str(up.data_dir), "-o", "json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def shown(ready: Ready, key: str) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {ready.operator_token}"}
    answer = httpx2.get(f"{ready.origin}/admin/v1/keys/{key}", headers=headers, timeout=LIMIT_S)
    answer.raise_for_status()
    document: dict[str, Any] = answer.json()
    return document


def client_of(ready: Ready) -> openai.OpenAI:
    return openai.OpenAI(base_url=ready.base_url, api_key=ready.api_key, max_retries=0)


def chat(ready: Ready, **changes: Any) -> Any:
    request: dict[str, Any] = {"model": ready.model, "messages": [QUESTION], "max_tokens": 4, "seed": 1}
    with client_of(ready) as client:
        return client.chat.completions.with_raw_response.create(**{**request, **changes})


def aborted_stream(ready: Ready) -> str:
    """Refused beside it; left in its middle. The workload of the stream."""
    request: dict[str, Any] = {"model": ready.model, "messages": [QUESTION], "max_tokens": 2_000, "stream": True}
    with client_of(ready) as client:
        answer = client.chat.completions.with_raw_response.create(**request, extra_body={"ignore_eos": True})
        with answer.parse() as stream:
            next(iter(stream))
            at_once = limited(ready)
    assert at_once.response.headers["x-ratelimit-remaining-requests"] == "1"
    return str(answer.headers["x-lunanexa-workload-id"])


def limited(ready: Ready) -> openai.RateLimitError:
    with pytest.raises(openai.RateLimitError) as caught:
        chat(ready)
    assert caught.value.code == "rate_limited"
    headers = caught.value.response.headers
    assert 1 <= int(headers["retry-after"]) <= 61
    assert headers["x-should-retry"] == "true"
    assert headers["x-ratelimit-limit-requests"] == "2"
    return caught.value


async def test_a_key_is_held_to_its_limits_and_ends(tmp_path: Path) -> None:
    async with running(tmp_path, *engine_with(tmp_path, "--itl-ms", "50")) as up:
        made = await key_command(up, "create", "--name", "e2e", "--concurrency", "1", "--requests-per-minute", "2")
        key = made["key"]
        ready = attrs.evolve(up.ready, api_key=made["secret"])
        workload = await trio.to_thread.run_sync(aborted_stream, ready)
        # The departure frees the slot, and the request counts; what the engine refuses does not.
        await up.until(lambda: shown(up.ready, key)["in_progress"] == 0, "the slot's release")
        aborted = receipt_of(up.ready, workload)
        assert aborted["state"] == "Cancelled"
        with pytest.raises(openai.BadRequestError):
            await trio.to_thread.run_sync(lambda: chat(ready, messages=[{"role": "nobody"}]))
        answer = await trio.to_thread.run_sync(chat, ready)
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        used = answer.parse().usage
        spent = await trio.to_thread.run_sync(limited, ready)
        assert spent.response.headers["x-ratelimit-remaining-requests"] == "0"
        assert int(spent.response.headers["retry-after"]) > 1
        usage = (await key_command(up, "show", key))["usage"]
        assert [usage[name] for name in ("requests", "succeeded", "failed", "cancelled")] == [3, 1, 1, 1]
        assert usage["output_tokens"] == aborted["output_tokens"] + used.completion_tokens
        await up.stop()


async def test_revocation_ends_an_open_stream(tmp_path: Path) -> None:
    async with running(tmp_path, *engine_with(tmp_path, "--itl-ms", "50")) as up:
        made = await key_command(up, "create")
        ready = attrs.evolve(up.ready, api_key=made["secret"])
        async with held_stream(ready, max_tokens=2_000) as stream:
            assert (await key_command(up, "revoke", made["key"]))["revoked"] is True
            began_s = trio.current_time()
            events = await stream.rest()
            assert trio.current_time() - began_s < 1
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "invalid_api_key"
        receipt = receipt_of(up.ready, stream.workload)
        assert (receipt["state"], receipt["detail"]) == ("Failed", "key_revoked")
        assert receipt["output_tokens"] > 0
        with pytest.raises(openai.AuthenticationError):
            await trio.to_thread.run_sync(chat, ready)
        listed = [key["key"] for key in (await key_command(up, "list"))["data"]]
        assert listed == ["key_local", "key_operator"]
        kept = await lunanexa(up.folder, "key", "revoke", "key_operator", "--data-dir", str(up.data_dir))
        assert kept.returncode == 65
        assert b"installation" in kept.stderr
        await up.stop()
