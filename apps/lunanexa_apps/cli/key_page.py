"""Documents of keys as pages for people."""

from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from lunanexa_apps.cli.tools import printable

_NONE = "-"


def keys_page(document: Any) -> Table | Text:
    """All keys, a line each."""
    keys = [key for key in document.get("data", ()) if isinstance(key, dict)] if isinstance(document, dict) else []
    if not keys:
        return Text("there are no keys", style="dim")
    headings = (
        "KEY",
        "NAME",
        "STATE",
        "MODELS",
        "AT ONCE",
        "REQUESTS/MIN",
        "TOKENS/MIN",
        "EXPIRES",
        "REQUESTS",
        "TOKENS",
    )
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for key in keys:
        usage = _part(key, "usage")
        table.add_row(
            Text(_word(key.get("key")), style="bold"),
            _word(key.get("name")),
            _state(key),
            _models(key),
            _word(key.get("concurrency")),
            _word(key.get("requests_per_minute")),
            _word(key.get("tokens_per_minute")),
            _date(key.get("expires_wall_ms")),
            _word(usage.get("requests")),
            f"{_word(usage.get('input_tokens'))} in, {_word(usage.get('output_tokens'))} out",
        )
    return table


def key_page(key: Any) -> Table:
    """One key, all of it."""
    usage = _part(key, "usage")
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    counts = ", ".join(f"{_word(usage.get(name))} {name}" for name in ("succeeded", "failed", "cancelled"))
    estimated = " (partly estimated)" if usage.get("estimated") else ""
    rows: list[tuple[str, str | Text]] = [
        ("key", Text(_word(key.get("key")), style="bold")),
        ("name", _word(key.get("name"))),
        ("state", _state(key)),
        ("roles", ", ".join(_word(role) for role in key.get("roles") or ()) or _NONE),
        ("models", _models(key)),
        ("created", _date(key.get("created_wall_ms"))),
        ("expires", _date(key.get("expires_wall_ms"))),
        ("at once", f"{_word(key.get('in_progress'))} of {_limit(key.get('concurrency'))}"),
        ("requests a minute", _left(_part(key, "requests_window"))),
        ("tokens a minute", _left(_part(key, "tokens_window"))),
        ("priority", f"{_word(key.get('priority_max'))} at most"),
        ("data class", f"{_word(key.get('data_class_max'))} at most"),
        ("requests", f"{_word(usage.get('requests'))} ({counts})"),
        ("tokens", f"{_word(usage.get('input_tokens'))} in, {_word(usage.get('output_tokens'))} out{estimated}"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _state(key: dict[str, Any]) -> Text:
    word = _word(key.get("state"))
    return Text(word, style={"active": "green", "expired": "red"}.get(word, ""))


def _models(key: dict[str, Any]) -> str:
    aliases = key.get("aliases")
    if not isinstance(aliases, list):
        return _NONE
    return ", ".join(_word(alias) for alias in aliases) or "all"


def _limit(value: object) -> str:
    return "any number" if value is None else _word(value)


def _left(window: dict[str, Any]) -> str:
    if not window:
        return "not limited"
    reset_ms = window.get("reset_ms")
    reset = f", all again in {-(-reset_ms // 1000)} s" if isinstance(reset_ms, int) and reset_ms else ""
    return f"{_word(window.get('remaining'))} of {_word(window.get('limit'))} left{reset}"


def _date(wall_ms: object) -> str:
    if not isinstance(wall_ms, int):
        return _NONE
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return _NONE


def _word(value: object) -> str:
    return _NONE if value is None else printable(str(value))


def _part(document: Any, name: str) -> dict[str, Any]:
    part = document.get(name) if isinstance(document, dict) else None
    return part if isinstance(part, dict) else {}
