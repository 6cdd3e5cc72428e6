"""A real model in llama.cpp. By hand: LUNANEXA_TEST_LLAMA_SERVER and LUNANEXA_TEST_GGUF name the program and the
model file; then ``pytest -m by_hand tests/end_to_end``."""

import os
from pathlib import Path
from typing import Any

import openai
import pytest
import trio

from tests.end_to_end.installation import Ready, gone, receipt_of, running

pytestmark = [pytest.mark.slow, pytest.mark.by_hand]

SERVER = os.environ.get("LUNANEXA_TEST_LLAMA_SERVER")
MODEL = os.environ.get("LUNANEXA_TEST_GGUF")


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
