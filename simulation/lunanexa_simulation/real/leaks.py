"""Whether something that is to be shown nowhere stands where it may not."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

SECRET_FOLDERS: Final = frozenset({"secrets", "identity"})
"""Below the data directories: files of their owner alone, made to hold them."""


def leak_in(texts: Iterator[tuple[str, bytes]], secrets: Mapping[str, str]) -> str | None:
    """The first secret that stands in one of these texts, and in which."""
    for where, text in texts:
        for name, secret in secrets.items():
            if secret.encode() in text:
                return f"{name} stands in {where}"
    return None


def files_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file that may hold no secret: logs, stores, documents, whatever lies there."""
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder)
        if file.is_file() and not SECRET_FOLDERS & set(path.parts[:-1]):
            yield str(path), file.read_bytes()
