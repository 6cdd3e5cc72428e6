"""What every process's credentials must do, with certificates of an authority of its own kind."""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import attrs

from lunanexa_core.identity.certificate import CertificateTerms
from lunanexa_core.identity.trust import Authority
from lunanexa_ports.credentials import Credentials
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.fleet_keys import FleetKeys


@attrs.frozen
class Bench:
    """What is tried, on an empty folder."""

    credentials: Callable[[], Credentials]
    """Opens the folder, as a process does that is started."""
    keys: FleetKeys
    """Of the same kind, to issue certificates."""
    break_folder: Callable[[], None]
    """From now on the folder can neither be read nor written."""


Check: TypeAlias = Callable[[Bench], None]

TERMS: Final = CertificateTerms(
    identity="lunanexa://c1/node/n1", serial="c0ffee", not_before_s=1_800_000_000, not_after_s=1_800_090_000
)


def check_nothing_at_first(bench: Bench) -> None:
    credentials = bench.credentials()
    assert credentials.certificate is None
    assert credentials.trusted == ()
    credentials.forget()
    assert credentials.certificate is None


def check_accepted_is_durable(bench: Bench) -> None:
    """With what is trusted, for the process that is started next."""
    credentials = _enrolled(bench)
    assert credentials.certificate is not None
    for opened in (credentials, bench.credentials()):
        assert opened.certificate == credentials.certificate
        assert opened.trusted == (_authority(bench).fingerprint,)


def check_renewal(bench: Bench) -> None:
    """What is in force stays so until the new certificate is accepted."""
    credentials = _enrolled(bench)
    before = credentials.certificate
    request = credentials.request()
    assert credentials.certificate == before
    found = credentials.accept(_issued(bench, request, serial="beef"))
    assert found.serial == "beef"
    assert bench.credentials().certificate == found != before


def check_a_request_is_the_same_until_it_is_answered(bench: Bench) -> None:
    """And it counts once, in the process that made it."""
    credentials = _enrolled(bench)
    before, request = credentials.certificate, credentials.request()
    assert credentials.request() == request
    another = bench.credentials().request()
    assert another != request
    chain = _issued(bench, request, serial="beef")
    assert _faults(lambda: credentials.accept(_issued(bench, another)))
    assert _faults(lambda: bench.credentials().accept(chain))
    assert credentials.certificate == before
    assert credentials.request() == request
    assert credentials.accept(chain).serial == "beef"
    assert _faults(lambda: credentials.accept(chain))
    assert credentials.request() != request


def check_an_authority_must_be_trusted(bench: Bench) -> None:
    """When the certificate is accepted; it goes on being shown when trust moves on."""
    credentials = bench.credentials()
    chain = _issued(bench, credentials.request())
    other, _ = bench.keys.make()
    for trusted in ((), (other,)):
        credentials.trust([one.certificate for one in trusted])
        assert _faults(lambda: credentials.accept(chain))
        assert credentials.certificate is None
    credentials.trust([other.certificate, _authority(bench).certificate])
    found = credentials.accept(chain)
    credentials.trust([other.certificate])
    for opened in (credentials, bench.credentials()):
        assert opened.certificate == found
        assert opened.trusted == (other.fingerprint,)


def check_trust_is_replaced(bench: Bench) -> None:
    """In the order that is given, durable, down to nobody."""
    credentials = bench.credentials()
    first, (second, _) = _authority(bench), bench.keys.make()
    for authorities in ((first,), (second, first), (first, second), (second,), ()):
        credentials.trust([one.certificate for one in authorities])
        for opened in (credentials, bench.credentials()):
            assert opened.trusted == tuple(one.fingerprint for one in authorities)


def check_what_is_no_certificate(bench: Bench) -> None:
    """Neither trusted nor shown, and nothing changes."""
    credentials = _enrolled(bench)
    before = credentials.certificate
    root = _authority(bench).certificate
    leaf = _issued(bench, credentials.request(), serial="beef")
    for bad in ("", "no certificate", "-----BEGIN CERTIFICATE-----", root[: len(root) // 2], "\udc80"):
        assert _faults(partial(credentials.accept, bad)), bad
        assert _faults(partial(credentials.trust, [root, bad])), bad
    assert _faults(lambda: credentials.accept(root))
    assert _faults(lambda: credentials.trust([leaf]))
    for opened in (credentials, bench.credentials()):
        assert opened.certificate == before
        assert opened.trusted == (_authority(bench).fingerprint,)
    assert credentials.accept(leaf).serial == "beef"


def check_forgotten_is_gone(bench: Bench) -> None:
    """For good, with trust and with what was asked for."""
    credentials = _enrolled(bench)
    chain = _issued(bench, credentials.request())
    for _ in range(2):
        credentials.forget()
        for opened in (credentials, bench.credentials()):
            assert opened.certificate is None
            assert opened.trusted == ()
    credentials.trust([_authority(bench).certificate])
    assert _faults(lambda: credentials.accept(chain))


def check_a_broken_folder(bench: Bench) -> None:
    """Each change is refused whole."""
    credentials = _enrolled(bench)
    before, trusted = credentials.certificate, credentials.trusted
    chain = _issued(bench, credentials.request(), serial="beef")
    bench.break_folder()
    changes: tuple[Callable[[], object], ...] = (
        lambda: credentials.accept(chain),
        lambda: credentials.trust([]),
        credentials.forget,
    )
    for change in changes:
        assert _unavailable(change)
        assert credentials.certificate == before
        assert credentials.trusted == trusted


CHECKS: Final[tuple[Check, ...]] = (
    check_nothing_at_first,
    check_accepted_is_durable,
    check_renewal,
    check_a_request_is_the_same_until_it_is_answered,
    check_an_authority_must_be_trusted,
    check_trust_is_replaced,
    check_what_is_no_certificate,
    check_forgotten_is_gone,
    check_a_broken_folder,
)


def _authority(bench: Bench) -> Authority:
    return next(iter(bench.keys.authorities().values()))


def _issued(bench: Bench, request: bytes, serial: str = TERMS.serial) -> str:
    chain = bench.keys.issue(_authority(bench).fingerprint, request, attrs.evolve(TERMS, serial=serial))
    assert chain is not None
    return chain


def _enrolled(bench: Bench) -> Credentials:
    credentials = bench.credentials()
    credentials.trust([_authority(bench).certificate])
    _ = credentials.accept(_issued(bench, credentials.request()))
    return credentials


def _faults(use: Callable[[], object]) -> bool:
    try:
        _ = use()
    except PortFault:
        return True
    return False


def _unavailable(use: Callable[[], object]) -> bool:
    try:
        _ = use()
    except PortUnavailable:
        return True
    return False
