"""What a simulated party is refused for: what OpenSSL refuses a real one for."""

import attrs
import pytest
import trio.testing

from lunanexa_core.identity.certificate import BACKDATED_MS, VALID_MS, PeerCertificate, terms_at
from lunanexa_ports.errors import PortFault
from lunanexa_simulation.certificates import SimulatedCertificate, read_certificate
from lunanexa_simulation.clock import EPOCH_WALL_MS, SimulatedClock
from lunanexa_simulation.credentials import SimulatedCredentials
from lunanexa_simulation.fleet_keys import SimulatedFleetKeys
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.signing import SimulatedKeyring

TERMS = terms_at("lunanexa://c1/node/n1", "c0ffee", EPOCH_WALL_MS)


@attrs.frozen
class _World:
    """A fleet's keys, a node that they let in, and who trusts them."""

    keyring: SimulatedKeyring
    keys: SimulatedFleetKeys
    shown: str
    verifier: SimulatedCredentials
    clock: SimulatedClock
    """The verifier's."""


@pytest.fixture
async def world() -> _World:
    keyring, stream, clock = SimulatedKeyring(), Streams(7).stream("keys"), SimulatedClock()
    keys = SimulatedFleetKeys(keyring, stream)
    (authority,) = keys.authorities().values()
    verifier = SimulatedCredentials(keyring, stream, clock)
    verifier.trust([authority.certificate])
    shown = keys.issue(authority.fingerprint, SimulatedCredentials(keyring, stream, clock).request(), TERMS)
    assert shown is not None
    return _World(keyring, keys, shown, verifier, clock)


async def test_who_is_trusted(world: _World) -> None:
    assert world.verifier.verified(world.shown) == PeerCertificate(**attrs.asdict(TERMS))
    made, _ = world.keys.make()
    world.verifier.trust([made.certificate])
    assert world.verifier.verified(world.shown) is None
    world.verifier.forget()
    assert world.verifier.verified(world.shown) is None


@pytest.mark.parametrize(
    ("by_ms", "good"),
    [(0, True), (-BACKDATED_MS, True), (-BACKDATED_MS - 1, False), (VALID_MS - 1, True), (VALID_MS, False)],
)
async def test_times_are_judged_by_the_verifiers_clock(
    world: _World, by_ms: int, good: bool, mock_clock: trio.testing.MockClock
) -> None:
    assert mock_clock.rate == 0
    world.clock.jump_wall(by_ms)
    assert (world.verifier.verified(world.shown) is not None) == good


async def test_forged_certificates(world: _World) -> None:
    """By an attacker with a key of its own, or one that changes what it was shown."""
    found = read_certificate(world.keyring, world.shown)
    assert found is not None
    own = world.keyring.new_key(Streams(8).stream("attacker"))
    (authority,) = world.keys.authorities().values()
    forged = (
        found.signed(own),
        attrs.evolve(found, issuer=own.public_key).signed(own),
        SimulatedCertificate(**attrs.asdict(TERMS), key=own.public_key, issuer=own.public_key).signed(own),
        world.shown.replace("c0ffee", "c0ffef"),
        world.shown[:-1],
        "",
        "[]",
        "{}",
        authority.certificate,
    )
    for one in forged:
        assert world.verifier.verified(one) is None, one
    for one in (*forged[:-1], world.shown):
        with pytest.raises(PortFault):
            world.verifier.trust([one])
