"""Both pairs of signer and verifier pass the one suite."""

from itertools import count
from pathlib import Path

import pytest

from lunanexa_adapters.crypto.signing import Ed25519Signer, Ed25519Verifier
from lunanexa_ports.conformance import signing
from lunanexa_ports.signing import Signer, Verifier
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.signing import SimulatedKeyring, SimulatedVerifier


@pytest.mark.parametrize("check", signing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["simulated", "ed25519"])
async def test_signing(check: signing.Check, kind: str, tmp_path: Path) -> None:
    keyring, stream, keys = SimulatedKeyring(), Streams(seed=7).stream("keys"), count()

    def simulated() -> tuple[Signer, Verifier]:
        return keyring.new_key(stream), SimulatedVerifier(keyring)

    def ed25519() -> tuple[Signer, Verifier]:
        return Ed25519Signer.load_or_create(tmp_path / f"{next(keys)}.pem"), Ed25519Verifier()

    await check(simulated if kind == "simulated" else ed25519)
