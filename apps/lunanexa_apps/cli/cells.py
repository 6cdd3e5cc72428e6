"""Cells of tables: unknown is shown as such, times with their unit, states in their colour."""

from datetime import UTC, datetime
from typing import Final

from rich.table import Table
from rich.text import Text

from lunanexa_apps.cli.tools import printable

WIDE: Final = 112
"""From so many columns on a list has all of its own."""
_GOOD: Final = frozenset({"ready", "online", "alive", "Succeeded", "proven", "bound", "True"})
_BAD: Final = frozenset({"failed", "lost", "offline", "revoked", "Failed"})
_WARY: Final = frozenset(
    ("starting", "backoff", "draining", "stopping", "assigned", "suspect", "Cancelled", "Queued", "False")
)


def table(*headings: str) -> Table:
    """A table without lines; what does not fit is folded."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        made.add_column(heading, overflow="fold")
    return made


def cut_columns(made: Table, *positions: int) -> None:
    """Cuts the words of these columns and keeps the others whole: folded words would fill a narrow screen. The
    JSON document has them whole."""
    for position, column in enumerate(made.columns):
        column.no_wrap, column.overflow = position not in positions, "ellipsis"


def word(value: object) -> str:
    """Unknown is shown as such, never as zero."""
    return "-" if value is None else printable(str(value))


def cell(value: object) -> Text:
    """A word, in the colour of a state."""
    shown = word(value)
    style = "green" if shown in _GOOD else "red" if shown in _BAD else "yellow" if shown in _WARY else ""
    return Text(shown, style=style)


def date(wall_ms: object) -> Text:
    """A time of Unix in milliseconds, to the minute."""
    if not isinstance(wall_ms, int):
        return Text("-")
    try:
        return Text(datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC"))
    except (ValueError, OverflowError, OSError):
        return Text("-")


def duration(value: object, suffix: str = "") -> Text:
    """Milliseconds, as people say them."""
    if not isinstance(value, int):
        return Text("-")
    if value >= 7_200_000:
        return Text(f"{value / 3_600_000:.0f} h{suffix}")
    if value >= 600_000:
        return Text(f"{value / 60_000:.0f} min{suffix}")
    return Text((f"{value} ms" if value < 1_000 else f"{value / 1_000:.1f} s") + suffix)
