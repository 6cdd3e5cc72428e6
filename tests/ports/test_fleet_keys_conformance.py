"""Both keepers of a fleet's keys pass the one suite."""

import shutil
from pathlib import Path

import pytest
import trio.testing

from lunanexa_adapters.crypto.credentials import TlsCredentials
from lunanexa_adapters.crypto.fleet_keys import LocalFleetKeys
from lunanexa_ports.conformance import fleet_keys
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.credentials import SimulatedCredentials
from lunanexa_simulation.fleet_keys import SimulatedFleetKeys
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.signing import SimulatedKeyring


@pytest.mark.parametrize("check", fleet_keys.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["simulated", "local"])
async def test_fleet_keys(
    check: fleet_keys.Check, kind: str, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    assert mock_clock.current_time() == 0  # of all keys that are made here none is older by the clock
    clock = SimulatedClock()
    if kind == "local":
        folder = tmp_path / "secrets"

        def break_folder() -> None:
            shutil.rmtree(folder)
            folder.touch()

        check(
            fleet_keys.Bench(
                keys=lambda: LocalFleetKeys(folder, clock),
                credentials=lambda: TlsCredentials(None),
                break_folder=break_folder,
            )
        )
        return
    keyring, stream = SimulatedKeyring(), Streams(7).stream("keys")
    keys = SimulatedFleetKeys(keyring, stream)

    def make_unavailable() -> None:
        keys.unavailable = True

    check(
        fleet_keys.Bench(
            keys=lambda: keys,
            credentials=lambda: SimulatedCredentials(keyring, stream, clock),
            break_folder=make_unavailable,
        )
    )
