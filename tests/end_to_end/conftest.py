"""One installation for all tests that only use it: each start costs seconds."""

from collections.abc import Iterator

import pytest

from tests.end_to_end.installation import Ready, Up, served


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Serves the reference engine; that it ends well is part of each run."""
    with served(tmp_path_factory.mktemp("installation")) as up:
        yield up


@pytest.fixture
def ready(installation: Up) -> Ready:
    return installation.ready
