"""What may be shown nowhere."""

from lunanexa_simulation.sight import Sight


def no_secret_shown(sight: Sight) -> str | None:
    """Nothing that was planted as a secret stands in a log line, a journal row or a metric."""
    texts = list(sight.new_texts())
    rows = sight.rows_after(sight.rows_read)
    texts += [(f"row {row.sequence}", row.record.decode()) for row in rows]
    sight.rows_read = rows[-1].sequence if rows else sight.rows_read
    for where, text in texts:
        for name, secret in sight.secrets.items():
            if secret in text:
                return f"{name} stands in {where}"
    return None
