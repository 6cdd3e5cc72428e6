"""Both stores of answers pass the one suite; on a real disk nothing of an answer outlives its time."""

import stat
from pathlib import Path

import pytest

from lunanexa_adapters.sqlite.answers import open_sqlite_answers
from lunanexa_core.ids import WorkloadId
from lunanexa_ports.answers import Answer
from lunanexa_ports.conformance import answers
from lunanexa_simulation.answers import open_simulated_answers
from lunanexa_simulation.disk import SimulatedDisk


@pytest.fixture(params=["simulated", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> answers.OpenAnswers:
    if request.param == "simulated":
        disk = SimulatedDisk()
        return lambda bytes_max: open_simulated_answers(disk, bytes_max)
    return lambda bytes_max: open_sqlite_answers(tmp_path / "controller" / "answers.sqlite3", bytes_max)


@pytest.mark.parametrize("check", answers.CHECKS, ids=lambda check: check.__name__)
async def test_answers(check: answers.Check, opened: answers.OpenAnswers) -> None:
    await check(opened)


async def test_what_has_expired_is_gone_from_the_files(tmp_path: Path) -> None:
    path, secret = tmp_path / "answers.sqlite3", b"the quick brown fox"
    answer = Answer(status=200, content_type="text/plain", body=secret * 10_000)

    def on_disk() -> bool:
        return any(secret in file.read_bytes() for file in tmp_path.iterdir())

    def modes() -> set[int]:
        return {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}

    async with open_sqlite_answers(path, 1 << 24) as store:
        assert await store.put(WorkloadId("wl_1"), answer, now_wall_ms=0, expires_wall_ms=10)
        assert on_disk()
        assert modes() == {0o600}
        assert await store.remove_expired(10) == 1
        assert not on_disk()
        # Also what had to make room for another one.
        assert await store.put(WorkloadId("wl_2"), answer, now_wall_ms=10, expires_wall_ms=20)
        other = Answer(status=200, content_type="text/plain", body=b"y")
        assert await store.put(WorkloadId("wl_3"), other, now_wall_ms=20, expires_wall_ms=30)
        assert await store.remove_expired(20) == 0
        assert not on_disk()
