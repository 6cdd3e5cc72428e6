"""One installation for all tests that only use it: each start costs seconds."""

from collections.abc import Iterator

import pytest
import trio

from tests.end_to_end.installation import Ready, Up


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Serves the reference engine; that it ends well is part of each run."""
    up = Up(tmp_path_factory.mktemp("installation"))
    try:
        trio.run(up.wait_ready)
        yield up
        trio.run(up.stop)
    finally:
        up.end_all()


@pytest.fixture
def ready(installation: Up) -> Ready:
    return installation.ready
