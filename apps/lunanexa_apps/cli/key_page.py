"""Documents of keys as pages for people."""

from collections.abc import Sequence
from typing import Any

import attrs
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from lunanexa_apps.cli.cells import WIDE, cut_columns, date, table, word
from lunanexa_client import Document

_NONE = "-"


def keys_page(keys: Sequence[Document]) -> RenderableType:
    """All keys, a line each."""
    return KeysTable(keys) if keys else Text("there are no keys", style="dim")


@attrs.frozen
class KeysTable:
    """Keys, a line each. The identifier is whole on every screen, to be copied; a narrow one does without limits,
    expiry and tokens, which ``key show`` tells."""

    keys: Sequence[Document]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> list[RenderableType]:
        wide = options.max_width >= WIDE
        more = ("LIMITS", "EXPIRES", "TOKENS") if wide else ()
        page = table("KEY", "NAME", "STATE", "MODELS", "REQUESTS", *more)
        if wide:
            for column in page.columns:
                column.no_wrap = column.header in ("KEY", "STATE", "REQUESTS")
                column.min_width = len(str(column.header))
        else:
            cut_columns(page, 1, 3)
        for key in self.keys:
            usage = _part(key, "usage")
            tokens = f"{word(usage.get('input_tokens'))} in, {word(usage.get('output_tokens'))} out"
            page.add_row(
                Text(word(key.get("key")), style="bold"),
                word(key.get("name")),
                _state(key),
                _models(key),
                word(usage.get("requests")),
                *((_limits(key), date(key.get("expires_wall_ms")), tokens) if wide else ()),
            )
        return [page]


def key_page(key: Any) -> Table:
    """One key, all of it."""
    usage = _part(key, "usage")
    page = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    page.add_column(style="dim")
    page.add_column(overflow="fold")
    counts = ", ".join(f"{word(usage.get(name))} {name}" for name in ("succeeded", "failed", "cancelled"))
    estimated = " (partly estimated)" if usage.get("estimated") else ""
    rows: list[tuple[str, str | Text]] = [
        ("key", Text(word(key.get("key")), style="bold")),
        ("name", word(key.get("name"))),
        ("state", _state(key)),
        ("roles", ", ".join(word(role) for role in key.get("roles") or ()) or _NONE),
        ("models", _models(key)),
        ("created", date(key.get("created_wall_ms"))),
        ("expires", date(key.get("expires_wall_ms"))),
        ("at once", f"{word(key.get('in_progress'))} of {_limit(key.get('concurrency'))}"),
        ("requests a minute", _left(_part(key, "requests_window"))),
        ("tokens a minute", _left(_part(key, "tokens_window"))),
        ("priority", f"{word(key.get('priority_max'))} at most"),
        ("data class", f"{word(key.get('data_class_max'))} at most"),
        ("requests", f"{word(usage.get('requests'))} ({counts})"),
        ("tokens", f"{word(usage.get('input_tokens'))} in, {word(usage.get('output_tokens'))} out{estimated}"),
    ]
    for row in rows:
        page.add_row(*row)
    return page


def _state(key: Document) -> Text:
    state = word(key.get("state"))
    return Text(state, style={"active": "green", "expired": "red"}.get(state, ""))


def _models(key: Document) -> str:
    aliases = key.get("aliases")
    if not isinstance(aliases, list):
        return _NONE
    return ", ".join(word(alias) for alias in aliases) or "all"


def _limits(key: Document) -> str:
    """Those that it has."""
    limits = {
        "concurrency": "at once",
        "requests_per_minute": "requests a minute",
        "tokens_per_minute": "tokens a minute",
    }
    return ", ".join(f"{word(key[name])} {what}" for name, what in limits.items() if key.get(name) is not None) or _NONE


def _limit(value: object) -> str:
    return "any number" if value is None else word(value)


def _left(window: Document) -> str:
    if not window:
        return "not limited"
    reset_ms = window.get("reset_ms")
    reset = f", all again in {-(-reset_ms // 1000)} s" if isinstance(reset_ms, int) and reset_ms else ""
    return f"{word(window.get('remaining'))} of {word(window.get('limit'))} left{reset}"


def _part(document: Any, name: str) -> dict[str, Any]:
    part = document.get(name) if isinstance(document, dict) else None
    return part if isinstance(part, dict) else {}
