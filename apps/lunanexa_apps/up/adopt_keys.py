"""Keys of adopted servers, as a secret holds them: one key, or a line ``URL KEY`` for each server that asks for one.

A key goes to its own server alone, so that one key among several servers must say whose it is. Lines for servers
that are not adopted this time are left alone.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from lunanexa_apps.setting_kinds import HttpUrl, NotOfThisKind
from lunanexa_apps.up.choice import ChoiceRefused

_FORM: Final = "the file holds one key alone, or a line 'URL KEY' for each server that asks for one"


def read_adopt_keys(secret: str | None, urls: Sequence[str]) -> Mapping[str, str] | ChoiceRefused:
    """Keys by URL. No refusal says a word of the secret but a URL that stands in it."""
    lines = [line.split() for line in (secret or "").splitlines() if line.strip()]
    if any(not word.isascii() or not word.isprintable() for line in lines for word in line):
        return _refused("a key of an adopted server has characters that no header may have")
    if len(lines) == 1 and len(lines[0]) == 1:
        if len(set(urls)) != 1:
            return _refused(f"one key, and {len(set(urls))} servers to adopt: whose it is can't be told")
        return {urls[0]: lines[0][0]}
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if len(line) != 2:
            return _refused(f"line {number} of the keys of adopted servers is no 'URL KEY'")
        try:
            url = HttpUrl().from_text(line[0], "")
        except NotOfThisKind:
            return _refused(f"line {number} of the keys of adopted servers does not begin with a URL")
        if keys.setdefault(url, line[1]) != line[1]:
            return _refused(f"line {number} of the keys of adopted servers has another key for {url}")
    return {url: key for url, key in keys.items() if url in urls}


def _refused(message: str) -> ChoiceRefused:
    return ChoiceRefused(message=message, hint=f"check --adopt-key-file: {_FORM}")
