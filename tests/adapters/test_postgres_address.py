"""What a store's URL may say, and that nobody sees its password."""

import pytest

from lunanexa_adapters.postgres.address import READERS_MAX, STATEMENT_TIMEOUT_MS, parse_address
from lunanexa_ports.errors import PortFault


def test_a_whole_url() -> None:
    address = parse_address(
        "postgresql://luna:s3cret@db.example:6432/fleet?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem"
        "&statement_timeout_ms=900&readers_max=2"
    )
    assert address.parameters["sslmode"] == "verify-full"
    assert address.parameters["sslrootcert"] == "/etc/ca.pem"
    assert address.parameters["password"] == "s3cret"
    assert not {"statement_timeout_ms", "readers_max"} & address.parameters.keys()
    assert (address.statement_timeout_ms, address.readers_max) == (900, 2)
    assert address.answer_timeout_s == 1.9
    assert address.shown == "postgresql://luna@db.example:6432/fleet"
    assert "s3cret" not in repr(address)


def test_what_a_url_leaves_out() -> None:
    address = parse_address("postgres:///fleet")
    assert (address.statement_timeout_ms, address.readers_max) == (STATEMENT_TIMEOUT_MS, READERS_MAX)
    assert address.parameters["target_session_attrs"] == "read-write"
    assert address.shown == "postgresql:///fleet"


@pytest.mark.parametrize("lease_ms", [1_000, 3_000, 20_000])
def test_limits_lie_within_the_lease(lease_ms: int) -> None:
    address = parse_address("postgresql://db/fleet").within_lease(lease_ms)
    # In the server a transaction as a whole may take twice as long as a statement.
    assert 0 < address.statement_timeout_ms * 2 <= lease_ms
    assert address.statement_timeout_ms <= STATEMENT_TIMEOUT_MS
    # A renewal that nobody answers is given up before its holder has to stop.
    assert address.answer_timeout_s * 1_000 <= lease_ms * 3 / 4
    assert address.connect_timeout_s * 1_000 <= lease_ms
    assert int(address.parameters["tcp_user_timeout"]) <= lease_ms


def test_what_the_url_says_is_refused_or_kept_and_not_changed() -> None:
    address = parse_address("postgresql://db/fleet?statement_timeout_ms=900&connect_timeout=7&tcp_user_timeout=30000")
    within = address.within_lease(3_000)
    assert within.statement_timeout_ms == 900
    assert (within.parameters["connect_timeout"], within.parameters["tcp_user_timeout"]) == ("7", "30000")
    with pytest.raises(PortFault, match=r"statement_timeout_ms is 900.*lease of 1700 ms; leave it out, or take 850"):
        address.within_lease(1_700)


def test_a_parameter_of_the_url_goes_before_ours() -> None:
    address = parse_address("postgresql://one,two/fleet?connect_timeout=7&target_session_attrs=any")
    assert address.connect_timeout_s == 7.0
    assert address.parameters["target_session_attrs"] == "any"
    assert address.shown == "postgresql://one,two/fleet"


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("mysql://u:s3cret@host/db", "postgresql://"),
        ("host=db password=s3cret", "postgresql://"),
        ("postgresql://u:s3cret@[db/fleet", "URL"),
        ("postgresql://u:s3cret@db/fleet?colour=red", "colour"),
        ("postgresql://u:s3cret@db/fleet?readers_max=0", "readers_max"),
        ("postgresql://u:s3cret@db/fleet?statement_timeout_ms=soon", "statement_timeout_ms"),
        ("postgresql://u:s3cret@db/fleet?connect_timeout=soon", "connect_timeout"),
        ("postgresql://u:s3cret%ZZ@db/fleet", "URL"),
    ],
)
def test_a_bad_url_is_refused_with_its_part_and_without_its_password(url: str, names: str) -> None:
    with pytest.raises(PortFault) as refused:
        parse_address(url)
    assert names in str(refused.value)
    assert "s3cret" not in str(refused.value)
