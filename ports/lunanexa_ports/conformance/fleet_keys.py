"""What every keeper of a fleet's keys must do, with credentials of its own kind that ask it for certificates."""

from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

from lunanexa_core.identity.certificate import CertificateTerms, PeerCertificate
from lunanexa_core.identity.trust import SigningKey
from lunanexa_ports.credentials import Credentials
from lunanexa_ports.errors import PortError, PortFault
from lunanexa_ports.fleet_keys import FleetKeys, Revoked


@attrs.frozen
class Bench:
    """What is tried, on an empty folder."""

    keys: Callable[[], FleetKeys]
    """Opens the folder, as each process that uses it would."""
    credentials: Callable[[], Credentials]
    """A new process's, in memory."""
    break_folder: Callable[[], None]
    """From now on the folder can neither be read nor written."""


Check: TypeAlias = Callable[[Bench], None]

TERMS: Final = CertificateTerms(
    identity="lunanexa://c1/node/n1", serial="c0ffee", not_before_s=1_800_000_000, not_after_s=1_800_090_000
)


def check_there_is_always_one(bench: Bench) -> None:
    """Of each, without a word, and the same for whoever opens the folder later."""
    keys = bench.keys()
    (fingerprint, authority), *others = keys.authorities().items()
    (key_id, signer), *more = keys.signers().items()
    assert not others
    assert not more
    assert authority.fingerprint == fingerprint
    assert len(bytes.fromhex(fingerprint)) == 32
    assert signer.key_id == key_id
    again = bench.keys()
    assert again.authorities() == {fingerprint: authority}
    assert [one.public_key for one in again.signers().values()] == [signer.public_key]


def check_made_ones_come_after(bench: Bench) -> None:
    """Durable, all different, oldest first."""
    keys = bench.keys()
    authorities, signers = list(keys.authorities().values()), list(keys.signers())
    for _ in range(3):
        authority, signing_key = keys.make()
        assert signing_key == SigningKey(
            key_id=signing_key.key_id, public_key=keys.signers()[signing_key.key_id].public_key
        )
        authorities.append(authority)
        signers.append(signing_key.key_id)
        for opened in (keys, bench.keys()):
            assert list(opened.authorities().values()) == authorities
            assert list(opened.signers()) == signers
    assert len({one.certificate for one in authorities}) == len(set(signers)) == 4


def check_issued_as_the_terms_say(bench: Bench) -> None:
    """By whichever authority is asked, for whoever opens the folder; and whoever asked can show it."""
    first = bench.keys()
    made, _ = first.make()
    for keys in (first, bench.keys()):
        for fingerprint, authority in keys.authorities().items():
            credentials = bench.credentials()
            credentials.trust([authority.certificate])
            assert credentials.trusted == (fingerprint,)
            chain = keys.issue(fingerprint, credentials.request(), TERMS)
            assert chain is not None
            assert credentials.accept(chain) == credentials.certificate == PeerCertificate(**attrs.asdict(TERMS))
    assert made.fingerprint in first.authorities()


def check_another_authority_is_not_believed(bench: Bench) -> None:
    keys = bench.keys()
    (trusted,) = keys.authorities().values()
    made, _ = keys.make()
    credentials = bench.credentials()
    credentials.trust([trusted.certificate])
    chain = keys.issue(made.fingerprint, credentials.request(), TERMS)
    assert chain is not None
    _refuses(credentials, chain)


def check_what_is_no_request(bench: Bench) -> None:
    """Cut, changed, or something else: nothing is issued."""
    keys, request = bench.keys(), bench.credentials().request()
    (fingerprint,) = keys.authorities()
    assert keys.issue(fingerprint, request, TERMS) is not None
    middle = len(request) // 2
    bad = [request[:place] + bytes([request[place] ^ 1]) + request[place + 1 :] for place in range(0, len(request), 3)]
    for one in (b"", b"{}", b"\x30\x00", request[:middle], request[middle:], b"\xff" * 200, *bad):
        assert keys.issue(fingerprint, one, TERMS) is None, one


def check_forgotten_is_gone(bench: Bench) -> None:
    """For good, for everybody, and the others stay."""
    keys = bench.keys()
    (first,), (first_signer,) = keys.authorities(), keys.signers()
    made, signing_key = keys.make()
    for _ in range(2):
        keys.forget(first, first_signer)
        for opened in (keys, bench.keys()):
            assert list(opened.authorities()) == [made.fingerprint]
            assert list(opened.signers()) == [signing_key.key_id]
    assert keys.issue(made.fingerprint, bench.credentials().request(), TERMS) is not None
    keys.forget("0" * 64, "ed25519:" + "0" * 16)
    assert list(keys.authorities()) == [made.fingerprint]


def check_revocation_lists(bench: Bench) -> None:
    """Signed by that authority, and for what they were asked for."""
    keys = bench.keys()
    assert len(keys.authorities()) == 1
    _ = keys.make()
    lists = [
        keys.revocation_list(fingerprint, revoked, number=number, now_s=1_800_000_000)
        for fingerprint in keys.authorities()
        for revoked in ((), (Revoked(serial="c0ffee", revoked_s=1_799_999_000),))
        for number in (1, 2)
    ]
    assert len(set(lists)) == len(lists) == 8


def check_a_broken_folder(bench: Bench) -> None:
    keys = bench.keys()
    (fingerprint,) = keys.authorities()
    bench.break_folder()
    uses: tuple[Callable[[], object], ...] = (
        keys.authorities,
        keys.signers,
        keys.make,
        lambda: keys.forget(fingerprint, "ed25519:" + "0" * 16),
    )
    for use in uses:
        assert _fails(use), use


CHECKS: Final[tuple[Check, ...]] = (
    check_there_is_always_one,
    check_made_ones_come_after,
    check_issued_as_the_terms_say,
    check_another_authority_is_not_believed,
    check_what_is_no_request,
    check_forgotten_is_gone,
    check_revocation_lists,
    check_a_broken_folder,
)


def _refuses(credentials: Credentials, chain: str) -> None:
    before = credentials.certificate
    try:
        _ = credentials.accept(chain)
    except PortFault:
        assert credentials.certificate == before
        return
    raise AssertionError("a certificate was accepted that leads to nobody")


def _fails(use: Callable[[], object]) -> bool:
    try:
        _ = use()
    except PortError:
        return True
    return False
