"""What every clock must do."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import trio

from lunanexa_ports.clock import Clock

MakeClock: TypeAlias = Callable[[], Clock]
"""Makes a clock of this machine, inside a Trio run."""
Check: TypeAlias = Callable[[MakeClock], Awaitable[None]]

_YEAR_2020_MS: Final = 1_577_836_800_000
_YEAR_2200_MS: Final = 7_258_118_400_000


async def check_never_falls(make: MakeClock) -> None:
    clock = make()
    last = clock.now()
    for _ in range(1_000):
        now = clock.now()
        assert now.mono_ms >= last.mono_ms
        last = now


async def check_goes_with_timers(make: MakeClock) -> None:
    """What Trio's timers wait for has passed on both readings, to the millisecond's rounding."""
    clock = make()
    before = clock.now()
    await trio.sleep(1 / 32)
    after = clock.now()
    assert after.mono_ms - before.mono_ms >= 30
    assert after.wall_ms != before.wall_ms


async def check_wall_is_unix_time(make: MakeClock) -> None:
    """``wall_ms`` are milliseconds since 1970, not seconds and not nanoseconds."""
    assert _YEAR_2020_MS < make().now().wall_ms < _YEAR_2200_MS


async def check_two_agree(make: MakeClock) -> None:
    """Two of one machine measure from the same origin: an instant may pass from one service to another."""
    first, second = make(), make()
    before, between, after = first.now(), second.now(), first.now()
    assert before.mono_ms <= between.mono_ms <= after.mono_ms


CHECKS: Final[tuple[Check, ...]] = (
    check_never_falls,
    check_goes_with_timers,
    check_wall_is_unix_time,
    check_two_agree,
)
