"""An installation whose journal is in PostgreSQL: served, cut off from it, served again."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from lunanexa_adapters.postgres.address import parse_address
from lunanexa_adapters.postgres.journal import open_postgres_journal
from lunanexa_ports.conformance.journal import read_all, verified
from lunanexa_simulation.real.proc import command_line
from tests.end_to_end.installation import LIMIT_S, answers, ask, environment, receipt_of, running, status_of
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

CONTROLLER = Path(sys.executable).with_name("lunanexa-controller")
PASSWORD = "s3cret-of-the-store"


@pytest.fixture
def store(postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty store; the server runs again afterwards."""
    yield postgres.url(postgres.new_schema()).replace("@", f":{PASSWORD}@")
    if postgres.process is None:
        postgres.start()


async def test_the_store_goes_and_comes_again(postgres: PostgresServer, store: str, tmp_path: Path) -> None:
    async with running(tmp_path, LUNANEXA_STORE=store) as up:
        ready = up.ready
        before = ask(ready)
        assert before.status_code == 200, before.text
        postgres.stop(signal.SIGKILL)
        for _ in range(3):
            refused = await trio.to_thread.run_sync(ask, ready)
            assert refused.status_code == 503, refused.text
            assert refused.json()["error"]["code"] == "store_unavailable"
            assert int(refused.headers["retry-after"]) > 0
        postgres.start()
        with trio.fail_after(LIMIT_S):
            while not await trio.to_thread.run_sync(answers, ready):
                await trio.sleep(0.05)
        after = ask(ready)
        assert after.status_code == 200
        # The same processes: the store was away, and nobody had to be started again.
        assert up.ready.pids == ready.pids
        for answer in (before, after):
            assert receipt_of(ready, answer.headers["x-lunanexa-workload-id"])["outcome"] is None
        assert status_of(ready)["deployments"]
        shown = [up.output, up.errors, *(" ".join(command_line(ready.pid(name))) for name in ("controller", "node"))]
        assert not [text for text in shown if PASSWORD in text]
        assert not (up.data_dir / "controller" / "store.sqlite3").exists()
        await up.stop()
    async with open_postgres_journal(parse_address(store)) as journal:
        kept = await read_all(journal)
        head = verified(kept)
        assert head.sequence == (await journal.head()).sequence
        # The controller took another epoch when the store was back, to see what had been written.
        assert kept[-1].epoch > kept[0].epoch


@asynccontextmanager
async def controller(folder: Path, store: str) -> AsyncIterator[trio.Process]:
    folder.mkdir()  # noqa: ASYNC240  # one entry in a local folder
    process = await trio.lowlevel.open_process(
        [str(CONTROLLER), "--data-dir", str(folder / "data"), "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        env=environment(folder, LUNANEXA_STORE=store),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        with trio.fail_after(LIMIT_S, shield=True):
            await process.wait()
        if process.stderr is not None:
            await process.stderr.aclose()


async def said(process: trio.Process) -> bytes:
    """All that the process said until it ended."""
    assert process.stderr is not None
    with trio.fail_after(LIMIT_S):
        return b"".join([chunk async for chunk in process.stderr])


async def test_a_store_that_is_not_meant_is_told_at_start(tmp_path: Path) -> None:
    cases = (
        (f"postgresql://lunanexa:{PASSWORD}@127.0.0.1:1/fleet?colour=red", 78, b"colour"),
        (f"mysql://lunanexa:{PASSWORD}@127.0.0.1/fleet", 2, b"postgresql://USER@HOST:PORT/DATABASE"),
    )
    for number, (url, status, word) in enumerate(cases):
        async with controller(tmp_path / str(number), url) as process:
            text = await said(process)
            with trio.fail_after(LIMIT_S):
                assert await process.wait() == status
        assert word in text
        assert PASSWORD.encode() not in text


def test_a_password_is_refused_on_a_command_line(tmp_path: Path) -> None:
    url = f"postgresql://lunanexa:{PASSWORD}@127.0.0.1/fleet"
    done = subprocess.run(
        [CONTROLLER, "--data-dir", tmp_path, "--store", url], check=False, capture_output=True, env=dict(os.environ)
    )
    assert done.returncode == 2
    assert b"without a password" in done.stderr
    assert PASSWORD.encode() not in done.stderr
