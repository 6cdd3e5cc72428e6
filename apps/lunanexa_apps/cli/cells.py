"""Cells of tables: unknown is shown as such, times with their unit, states in their colour."""

from datetime import UTC, datetime
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from lunanexa_apps.cli.tools import printable
from lunanexa_core.nodes.policy import OF_SUMS

WIDE: Final = 112
"""From so many columns on a list has all of its own."""
_GAP: Final = 2
_CUT: Final = 10
_IDENTIFIER: Final = 32
"""Ours are no longer, and stay whole."""
_GOOD: Final = frozenset({"ready", "online", "alive", "Succeeded", "proven", "bound", "True"})
_BAD: Final = frozenset({"failed", "lost", "offline", "revoked", "Failed"})
_WARY: Final = frozenset(
    ("starting", "backoff", "draining", "stopping", "assigned", "suspect", "Cancelled", "Queued", "False")
)


class Rows(Table):
    """A table without lines. Where the screen is so narrow that words would be broken, each row stands by itself: its
    first cell, and below it the others under their headings' names."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        gaps = _GAP * (len(self.columns) - 1)
        if self.row_count and sum(map(_least, self.columns)) + gaps > options.max_width:
            return self._alone()
        return super().__rich_console__(console, options)

    def _alone(self) -> RenderResult:
        names = [str(column.header) for column in self.columns]
        for first, *others in zip(*(column.cells for column in self.columns), strict=True):
            yield Text(f"{names[0]}  " if names[0] else "", style="dim").append_text(_text(first))
            told = Text("; ").join(
                Text(f"{name.lower()} ", style="dim").append_text(_text(value))
                for name, value in zip(names[1:], others, strict=True)
            )
            yield Padding(told, (0, 0, 0, _GAP), expand=False)


def _least(column: Column) -> int:
    """The width that a column can't do without: its longest word. Of digests and addresses, and of a column that may be
    cut, some characters are enough."""
    texts = [_text(value).plain for value in (column.header, *column.cells)]
    words = texts if column.no_wrap else [word for text in texts for word in text.split()]
    longest = max(map(cell_len, words), default=0)
    return min(longest, _CUT if column.overflow == "ellipsis" and not column.no_wrap else _IDENTIFIER)


def _text(value: RenderableType) -> Text:
    return value if isinstance(value, Text) else Text(str(value))


def table(*headings: str) -> Table:
    """A table of these columns; what does not fit is folded between its words."""
    made = Rows(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
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


def refusal_line(node: object, what: object, refusal: object) -> Text:
    """What a node does not run, and why."""
    return Text(f"{word(node)} does not run {word(what)} ({why_refused(refusal)})", style="yellow")


def why_refused(refusal: object) -> str:
    """A node's word for it, and what the word means where it does not say so itself."""
    why = word(refusal)
    return f"{why}: no room by its owner's rule" if why in OF_SUMS else why


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
