"""What is left of requests on the disk, and what becomes of their repetition, also after the controller was killed."""

import os
import signal
from pathlib import Path
from typing import Any

import openai
import pytest
import trio

from tests.end_to_end.installation import Ready, Up, answers, running

pytestmark = pytest.mark.slow

PROMPT = "Zanzibar-Kumquat-Obelisk, in a sentence nobody else would send"


def chat(ready: Ready, **headers: str) -> Any:
    """By the official client with its retries on. Its own answer, with head."""
    with openai.OpenAI(base_url=ready.base_url, api_key=ready.api_key, max_retries=2) as client:
        return client.chat.completions.with_raw_response.create(
            model=ready.model,
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=8,
            extra_headers={name.replace("_", "-"): value for name, value in headers.items()},
        )


def identity(answer: Any) -> str:
    """Of an answer; no two have one in common."""
    return str(answer.parse().id)


def holds(up: Up, text: str) -> list[str]:
    """The files of the data directory in which ``text`` stands."""
    files = (path for path in up.data_dir.rglob("*") if path.is_file())
    return sorted(path.name for path in files if text.encode() in path.read_bytes())


async def test_only_what_its_caller_lets_be_kept_is_on_the_disk(tmp_path: Path) -> None:
    async with running(tmp_path) as up:
        ready = up.ready
        plain = await trio.to_thread.run_sync(lambda: chat(ready, idempotency_key="plain"))
        kept_terms = {"idempotency_key": "kept", "x_lunanexa_retain_ms": "600000"}
        kept = await trio.to_thread.run_sync(lambda: chat(ready, **kept_terms))
        assert holds(up, identity(plain)) == []
        assert set(holds(up, identity(kept))) <= {"answers.sqlite3", "answers.sqlite3-wal"}
        assert holds(up, identity(kept))
        assert holds(up, PROMPT) == holds(up, PROMPT[:24]) == []

        before = up.ready
        os.kill(before.pid("controller"), signal.SIGKILL)

        def serves() -> bool:
            found = up.read_ready()
            return found is not None and found.pids["controller"] != before.pids["controller"] and answers(found)

        await up.until(serves, "an answer of another controller")
        again = await trio.to_thread.run_sync(lambda: chat(up.ready, **kept_terms))
        assert again.headers["x-lunanexa-replayed"] == "true"
        assert again.content == kept.content
        with pytest.raises(openai.ConflictError) as caught:
            await trio.to_thread.run_sync(lambda: chat(up.ready, idempotency_key="plain"))
        assert caught.value.code == "idempotency_output_gone"
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["receipt"]["workload_id"] == plain.headers["x-lunanexa-workload-id"]
        assert caught.value.body["receipt"]["state"] == "Succeeded"
        await up.stop()
