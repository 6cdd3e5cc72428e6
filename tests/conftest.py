"""Settings that every test shares."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Time never decides a test: no deadline an example, no complaint about slow generation on a busy machine.
# CI draws the same examples each time, so that a change is judged by what it changes.
settings.register_profile(
    "lunanexa", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("lunanexa")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Writes the marks that `.ci/no_skips.py` needs into the JUnit report, which has no marks of its own."""
    for item in items:
        if item.get_closest_marker("by_hand") is not None:
            item.user_properties.append(("mark", "by_hand"))
