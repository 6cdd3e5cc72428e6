"""A node of real processes is cordoned, drained under a stream and given back, by the program."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.end_to_end.installation import Up, answers, ask, engine_with, held_stream, lunanexa, running

pytestmark = pytest.mark.slow


async def command(up: Up, *arguments: str, status: int = 0) -> Any:
    ended = await lunanexa(up.folder, *arguments, "--data-dir", str(up.data_dir), "-o", "json")
    assert ended.returncode == status, ended.stderr
    return json.loads(ended.stdout)


async def test_a_node_is_drained_under_a_stream_and_given_back(tmp_path: Path) -> None:
    async with running(tmp_path, *engine_with(tmp_path, "--itl-ms", "50")) as up:
        ready = up.ready
        (node,) = (await command(up, "node", "list"))["data"]
        name = node["node"]
        async with held_stream(ready, max_tokens=200) as stream, trio.open_nursery() as nursery:
            begun = await command(up, "node", "drain", name, "--no-wait", "--reason", "fan")
            assert (begun["drained"], begun["in_flight"]) == (False, 1)
            refused = await trio.to_thread.run_sync(ask, ready)
            assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
            drained: list[Any] = []

            async def drain() -> None:
                drained.append(await command(up, "node", "drain", name))

            nursery.start_soon(drain)
            events = await stream.rest()
            assert events[-1] == "data: [DONE]"
        assert (drained[0]["drained"], drained[0]["replicas"]) == (True, [])
        (entry,) = (await command(up, "deployment", "list"))["data"]
        deployment = entry["spec"]["deployment"]
        shown = await command(up, "deployment", "show", deployment)
        assert shown["status"]["not_placed"] == {name: ["the node takes no new work"]}
        await command(up, "node", "activate", name)
        await up.until(lambda: answers(ready), "the first answer after the drain")
        pid = (await command(up, "deployment", "show", deployment))["status"]["replicas"][0]["pid"]
        scaled = await command(up, "deployment", "scale", deployment, "2")
        assert [replica["pid"] for replica in scaled["status"]["replicas"]] == [pid]
        assert answers(ready)
        await up.stop()
