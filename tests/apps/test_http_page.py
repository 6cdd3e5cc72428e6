"""The page on the HTTP surface says what the code does."""

import re
from pathlib import Path

import pytest

from lunanexa_adapters.asgi.routes import ROUTES
from lunanexa_apps.controller.gateway.report import HELP
from lunanexa_apps.controller.nodes import HELP as NODES_HELP
from lunanexa_core.drivers.catalog import DRIVERS
from lunanexa_core.outcomes import TABLE, Outcome

PAGE = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("outcome", Outcome)
def test_each_outcome_stands_there_as_it_is(outcome: Outcome) -> None:
    row = TABLE[outcome]
    wait = "" if row.retry_after_ms is None else f"{-(-row.retry_after_ms // 1000)} s"
    cells = (f"`{outcome.value}`", row.http_status, f"`{row.error_type}`", "yes" if row.retry else "no", wait)
    line = "| " + " | ".join(map(str, (*cells, row.exit_code))) + " | "
    assert line in PAGE


def test_each_metric_and_driver_stands_there() -> None:
    for name in (*HELP, *NODES_HELP, *DRIVERS):
        assert f"`{name}`" in PAGE, name


def test_each_route_stands_there() -> None:
    for path in {route.path for route in ROUTES}:
        assert re.search(rf"{re.escape(path)}[`?]", PAGE), path
