"""Settings that every test shares, and the one database server of those that need it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.examples import examples, left_out
from tests.postgres_server import PostgresServer, make_server

# Time never decides a test: no deadline an example, no complaint about slow generation on a busy machine.
# CI draws the same examples each time, so that a change is judged by what it changes.
settings.register_profile(
    "lunanexa",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    max_examples=examples(100),
)
settings.load_profile("lunanexa")

# Until a composition root configures it, structlog draws tracebacks for people, which takes seconds each.
structlog.configure(processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.PrintLoggerFactory())

# The suites' own assertions tell what they compared.
pytest.register_assert_rewrite("lunanexa_ports.conformance")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all: who stops it starts it again."""
    server = make_server()
    yield server
    server.remove()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return left_out(collection_path) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Writes the marks that `.ci/no_skips.py` needs into the JUnit report, which has no marks of its own."""
    for item in items:
        if item.get_closest_marker("by_hand") is not None:
            item.user_properties.append(("mark", "by_hand"))
