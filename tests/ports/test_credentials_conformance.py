"""Both kinds of credentials pass the one suite."""

import shutil
from pathlib import Path

import pytest

from lunanexa_adapters.crypto.credentials import TlsCredentials
from lunanexa_adapters.crypto.fleet_keys import LocalFleetKeys
from lunanexa_ports.conformance import credentials
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.credentials import IdentityFolder, SimulatedCredentials
from lunanexa_simulation.fleet_keys import SimulatedFleetKeys
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.signing import SimulatedKeyring


@pytest.mark.parametrize("check", credentials.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["simulated", "tls"])
async def test_credentials(check: credentials.Check, kind: str, tmp_path: Path) -> None:
    clock = SimulatedClock()
    if kind == "tls":
        folder = tmp_path / "identity"

        def break_folder() -> None:
            shutil.rmtree(folder)
            folder.touch()

        check(
            credentials.Bench(
                credentials=lambda: TlsCredentials(folder),
                keys=LocalFleetKeys(tmp_path / "secrets", clock),
                break_folder=break_folder,
            )
        )
        return
    keyring, stream, simulated = SimulatedKeyring(), Streams(7).stream("keys"), IdentityFolder()

    def make_unavailable() -> None:
        simulated.unavailable = True

    check(
        credentials.Bench(
            credentials=lambda: SimulatedCredentials(keyring, stream, clock, simulated),
            keys=SimulatedFleetKeys(keyring, stream),
            break_folder=make_unavailable,
        )
    )
