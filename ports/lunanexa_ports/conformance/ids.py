"""What every source of identifiers must do."""

import base64
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from lunanexa_core.ids import CROCKFORD, is_identifier
from lunanexa_core.keys import weak_secret
from lunanexa_ports.ids import IdSource

MakeIds: TypeAlias = Callable[[], IdSource]
"""Makes a source, inside a Trio run."""
Check: TypeAlias = Callable[[MakeIds], Awaitable[None]]

_COUNT: Final = 2_000


async def check_form(make: MakeIds) -> None:
    """``<kind>_`` and 26 Crockford characters, an identifier of ours."""
    new = make().new("wl")
    kind, _, rest = new.partition("_")
    assert kind == "wl"
    assert len(rest) == 26
    assert set(rest) <= set(CROCKFORD)
    assert is_identifier(new)


async def check_never_twice(make: MakeIds) -> None:
    ids = make()
    assert len({ids.new("wl") for _ in range(_COUNT)}) == _COUNT


async def check_sources_differ(make: MakeIds) -> None:
    """Two processes never make the same identifier or secret."""
    first, second = make(), make()
    assert not {first.new("wl") for _ in range(_COUNT)} & {second.new("wl") for _ in range(_COUNT)}
    assert first.secret() != second.secret()


async def check_secret(make: MakeIds) -> None:
    """43 URL-safe characters of 256 bits, never the same, never one that a configuration would refuse."""
    ids = make()
    secrets = {ids.secret() for _ in range(100)}
    assert len(secrets) == 100
    for secret in secrets:
        assert len(secret) == 43
        assert len(base64.urlsafe_b64decode(secret + "=")) == 32
        assert weak_secret(secret) is None


async def check_below(make: MakeIds) -> None:
    """Every value of a small range comes, and none outside of it."""
    ids = make()
    assert {ids.below(1) for _ in range(10)} == {0}
    assert {ids.below(7) for _ in range(_COUNT)} == set(range(7))
    assert all(0 <= ids.below(10**30) < 10**30 for _ in range(10))


CHECKS: Final[tuple[Check, ...]] = (
    check_form,
    check_never_twice,
    check_sources_differ,
    check_secret,
    check_below,
)
