"""The examples of docs/client.md, run as they stand against the real service."""

import os
import re
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.adapters.edge import OPERATOR
from tests.adapters.test_bad_clients import served
from tests.apps.engine_driver import engine
from tests.core.builders import SECRET

EXAMPLES = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs" / "client.md").read_text(), re.DOTALL)


@pytest.fixture
def clock() -> MockClock:
    """The service's time stands still; that of the examples is their own."""
    return MockClock()


@pytest.mark.slow
async def test_the_examples_of_the_page(clock: MockClock) -> None:
    assert len(EXAMPLES) >= 8
    async with served(clock, engine(names=("tiny",))) as server:
        host, port = server.address
        for example in EXAMPLES:
            token = OPERATOR if "client.operator" in example else SECRET
            variables = {"LUNANEXA_URL": f"http://{host}:{port}/v1", "LUNANEXA_TOKEN": token}
            ended = await trio.run_process(
                [sys.executable, "-W", "error", "-c", example],
                env={**os.environ, **variables},
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
            assert ended.returncode == 0, (example, ended.stderr.decode())
            assert ended.stderr == b""
            assert ended.stdout or "print" not in example
