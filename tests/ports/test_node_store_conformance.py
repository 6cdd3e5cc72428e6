"""Both node stores pass the one suite."""

from pathlib import Path

import pytest

from lunanexa_adapters.sqlite.node_store import open_sqlite_node_store
from lunanexa_ports.conformance import node_store
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.node_store import open_simulated_node_store


@pytest.fixture(params=["simulated", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> node_store.OpenNodeStore:
    if request.param == "simulated":
        disk = SimulatedDisk()
        return lambda: open_simulated_node_store(disk)
    return lambda: open_sqlite_node_store(tmp_path / "node" / "node.sqlite3")


@pytest.mark.parametrize("check", node_store.CHECKS, ids=lambda check: check.__name__)
async def test_node_store(check: node_store.Check, store: node_store.OpenNodeStore) -> None:
    await check(store)
