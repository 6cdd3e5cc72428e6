"""Where a PostgreSQL store is, and what a connection to it may cost, as one URL says it.

All that libpq knows may stand in the URL (``sslmode``, ``sslrootcert``, ``passfile``, several hosts, ``options``); two
parameters are our own and are taken out of it: ``statement_timeout_ms`` and ``readers_max``.
"""

from collections.abc import Mapping
from itertools import zip_longest
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import attrs
import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from lunanexa_ports.errors import PortFault

STATEMENT_TIMEOUT_MS: Final = 2_000
READERS_MAX: Final = 4
ANSWER_MARGIN_MS: Final = 1_000

_SCHEMES: Final = ("postgresql", "postgres")
_DEFAULTS: Final[Mapping[str, str]] = {
    "application_name": "lunanexa",
    "connect_timeout": "3",
    # Of several hosts the one that takes writes: a standby would refuse each of them.
    "target_session_attrs": "read-write",
    # A peer that is gone without a word is noticed within seconds on an idle connection too.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
}


@attrs.frozen(kw_only=True)
class PostgresAddress:
    """``parameters`` are libpq's and may hold a password; only :attr:`shown` is for people."""

    parameters: Mapping[str, str] = attrs.field(repr=False)
    shown: str
    statement_timeout_ms: int = STATEMENT_TIMEOUT_MS
    readers_max: int = READERS_MAX
    answer_margin_ms: int = ANSWER_MARGIN_MS
    """For the network, beyond what the server may take for a statement."""
    given: frozenset[str] = frozenset()
    """Names of what the URL itself says, ours and libpq's."""

    @property
    def connect_timeout_s(self) -> float:
        """For one attempt at one host."""
        return max(1.0, float(self.parameters["connect_timeout"]))

    @property
    def answer_timeout_s(self) -> float:
        """When a statement is given up on this side: the server has had its time, and the network its own."""
        return (self.statement_timeout_ms + self.answer_margin_ms) / 1_000

    def within_lease(self, lease_ms: int) -> "PostgresAddress":
        """With limits that fit into a leadership lease. What a dead or paused holder left running has ended in the
        server before another may lead, and a renewal that nobody answers is given up while there is time for one more.
        Raises :class:`PortFault` when the URL says a ``statement_timeout_ms`` that is too long for that."""
        # Half, because a transaction as a whole has twice the time of its statements.
        most_ms = lease_ms // 2
        if "statement_timeout_ms" in self.given and self.statement_timeout_ms > most_ms:
            raise PortFault(
                f"the store's URL can't be used: statement_timeout_ms is {self.statement_timeout_ms}, more than half of"
                f" the leadership lease of {lease_ms} ms; leave it out, or take {most_ms} or less"
            )
        limits = {
            "connect_timeout": str(min(int(_DEFAULTS["connect_timeout"]), max(1, lease_ms // 2_000))),
            "tcp_user_timeout": str(min(int(_DEFAULTS["tcp_user_timeout"]), lease_ms)),
        }
        return attrs.evolve(
            self,
            parameters={**self.parameters, **{name: limits[name] for name in limits.keys() - self.given}},
            statement_timeout_ms=min(self.statement_timeout_ms, most_ms),
            answer_margin_ms=min(self.answer_margin_ms, lease_ms // 4),
        )


def parse_address(url: str) -> PostgresAddress:
    """Reads ``postgresql://USER@HOST:PORT/DATABASE?PARAMETER=VALUE``. Raises :class:`PortFault` with the part that
    is wrong; the text of an error never holds a password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise PortFault("the store's URL is none: write postgresql://USER@HOST:PORT/DATABASE") from None
    if parts.scheme not in _SCHEMES:
        raise PortFault("the store's URL does not begin with postgresql://")
    ours = {"statement_timeout_ms": STATEMENT_TIMEOUT_MS, "readers_max": READERS_MAX}
    theirs: list[tuple[str, str]] = []
    written = parse_qsl(parts.query, keep_blank_values=True)
    for name, value in written:
        if name in ours:
            ours[name] = _positive(name, value)
        else:
            theirs.append((name, value))
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    if unknown := [name for name, _ in theirs if name not in known]:
        raise PortFault(f"the store's URL can't be used: neither libpq nor LunaNexa knows a parameter {unknown[0]}")
    try:
        # By hand, because urlunsplit drops the slashes before an empty host.
        found = conninfo_to_dict(f"{parts.scheme}://{parts.netloc}{parts.path}?{urlencode(theirs, quote_via=quote)}")
        given = {name: str(value) for name, value in found.items() if value is not None}
        float(given.get("connect_timeout", "0"))
    except psycopg.Error:
        # Without libpq's own words: they repeat what is wrong, a password too.
        raise PortFault("the store's URL can't be used: in its parts, write a % as %25, @ as %40, / as %2F") from None
    except ValueError:
        raise PortFault("the store's URL can't be used: connect_timeout is not a number of seconds") from None
    return PostgresAddress(
        parameters={**_DEFAULTS, **given},
        shown=_shown(given),
        given=frozenset(name for name, _ in written),
        **ours,
    )


def _positive(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and 0 < int(value) < 10_000_000):
        raise PortFault(f"the store's URL can't be used: {name} is not a whole number above 0")
    return int(value)


def _shown(given: Mapping[str, str]) -> str:
    user, hosts, ports = given.get("user"), given.get("host", "").split(","), given.get("port", "").split(",")
    places = [f"{host}:{port}" if port else host for host, port in zip_longest(hosts, ports)]
    return f"postgresql://{f'{user}@' if user else ''}{','.join(places)}/{given.get('dbname', '')}"
